"""Answers that must not come from a leader that has been replaced without knowing it.

A request is answered after a majority has said, later than the request came, that it still follows this leader, and
after everything the leader had then is applied. Requests that come together share one round of questions. The same
way goes every answer "this is not new": a repeat or a conflict is told only once it is final.
"""

from broker.raft.effects import Role
from broker.raft.events import NotLeader, NotReady, Read, ReadAt
from broker.raft.identity import Member
from broker.raft.messages import ReadProbe, ReadReply
from broker.raft.readround import ReadRequest, ReadRound
from broker.raft.replica import Replica


class Reading(Replica):
    __slots__ = ()

    def read(self, event: Read) -> None:
        if self.role is not Role.LEADER:
            self.resolve(event.request, NotLeader(self.leader))
        elif not self.ready:
            # Before its first own entry is applied a leader cannot know what its predecessors committed.
            self.resolve(event.request, NotReady())
        else:
            self.confirm(ReadRequest(event.request, self.commit, None))

    def confirm(self, request: ReadRequest) -> None:
        self.reads_new.append(request)
        self.touch()

    def start_read_round(self) -> None:
        if not self.reads_new:
            return
        self.read_number += 1
        self.read_rounds.append(ReadRound(self.read_number, self.reads_new))
        self.reads_new = []
        self.ask_readers()
        self._settle_read_rounds()

    def ask_readers(self) -> None:
        """An answer to the newest question answers all older ones."""
        for member in self.configuration.voters:
            if member != self.me:
                self.send(member, ReadProbe(self.term, self.read_number), gated=False)

    def on_read_probe(self, sender: Member, message: ReadProbe) -> None:
        self.follow(sender)
        self.send(sender, ReadReply(self.term, message.number))

    def on_read_reply(self, sender: Member, message: ReadReply) -> None:
        if self.role is not Role.LEADER:
            return
        for round_ in self.read_rounds:
            if round_.number <= message.number:
                round_.acks.add(sender)
        self._settle_read_rounds()

    def _settle_read_rounds(self) -> None:
        configuration = self.configuration
        still_open = []
        for round_ in self.read_rounds:
            agreeing = sum(1 for voter in configuration.voters if voter == self.me or voter in round_.acks)
            if agreeing >= configuration.quorum:
                self.reads_confirmed.extend(round_.requests)
            else:
                still_open.append(round_)
        self.read_rounds = still_open
        self.answer_reads()

    def answer_reads(self) -> None:
        if not self.reads_confirmed:
            return
        later = []
        for read in self.reads_confirmed:
            if read.log_index > self.applied:
                later.append(read)
            elif read.judged is not None:
                self.resolve(read.request, read.judged)
            else:
                self.resolve(read.request, ReadAt(self.applied, self.log.start_offset, self.applied_offset))
        self.reads_confirmed = later
