"""Entries from the leader to everyone else.

The leader takes requests, gives them index, offset and time, and sends them on while its own disk is still writing. A
follower keeps what agrees, drops what contradicts, and answers only when its disk has it.
"""

from broker.raft.applying import Applying
from broker.raft.effects import Load, Role
from broker.raft.entry import Body, Cut, Entry, Kind, Stamp
from broker.raft.events import Judged, Loaded, NotLeader, NotReady, Overloaded, Propose, Refused, Retain
from broker.raft.identity import Member
from broker.raft.messages import Append, AppendReply, InstallSnapshot
from broker.raft.progress import Mode, Progress
from broker.raft.readround import ReadRequest
from broker.raft.replica import InvariantBroken
from myqueue.protocol.dedup_records import DedupRecord


class Replication(Applying):
    __slots__ = ()

    # The leader takes

    def propose(self, event: Propose) -> None:
        if not self._takes(event.request):
            return
        if self.pending_bytes >= self.settings.pending_bytes:
            self.resolve(event.request, Overloaded(self.pending_bytes))
            return
        assert self.pending is not None
        whole, marks = self.pending.judge(event.stamp, event.count, event.marks)
        if whole is not None or any(verdict is not None for verdict in marks):
            self.confirm(ReadRequest(event.request, self.log.last_index, Judged(whole, marks)))
            return
        entry = self.take(Kind.MESSAGES, event.wall_ms, event.body, event.count, event.stamp, event.marks)
        self.waiting[entry.index] = event.request

    def retain(self, event: Retain) -> None:
        if not self._takes(event.request):
            return
        if not self.log.start_index < event.start_index <= self.applied + 1:
            self.resolve(event.request, Refused("the cut must lie between the log's start and what is applied"))
            return
        entry = self.take(Kind.TRUNCATE, event.wall_ms, Cut(event.start_index, event.start_offset))
        self.waiting[entry.index] = event.request

    def _takes(self, request: int) -> bool:
        if self.role is not Role.LEADER:
            self.resolve(request, NotLeader(self.leader))
        elif not self.ready or self.handover_to is not None:
            self.resolve(request, NotReady())
        else:
            return True
        return False

    def take(
        self,
        kind: Kind,
        wall_ms: int,
        body: Body = None,
        count: int = 0,
        stamp: Stamp | None = None,
        marks: tuple[DedupRecord, ...] = (),
    ) -> Entry:
        log = self.log
        time = max(wall_ms, log.last_time)
        entry = Entry(log.last_index + 1, self.term, kind, log.end_offset, time, count, stamp, marks, body)
        log.append(entry)
        assert self.pending is not None
        self.pending.add(entry)
        self.pending_bytes += entry.size
        self.touch()
        return entry

    # The leader sends

    def replicate(self) -> None:
        """Once in a round: what came in together goes out together."""
        behind = False
        last = self.log.last_index
        for member, progress in self.progress.items():
            if progress.match < last:
                behind = True
                self._feed(member, progress)
        if (behind or self.read_rounds) and self.retry_due is None:
            self.retry_due = self.around.now + self.settings.retry_ms
            self.wake_at(self.retry_due)

    def _feed(self, member: Member, progress: Progress) -> None:
        log, settings = self.log, self.settings
        while progress.next <= log.last_index and not progress.paused(settings.window_messages, settings.window_bytes):
            previous = progress.next - 1
            if previous < log.start_index - 1:
                progress.snapshot_sent(self.around.now)
                self.send(member, InstallSnapshot(self.term, self.snapshot()), gated=False)
                return
            room = settings.append_bytes if progress.mode is Mode.STREAM else settings.probe_bytes
            entries = log.slice(progress.next, room)
            if entries is None:
                progress.load(self.around.now)
                self.around.round.loads.append(Load(self.id, member, progress.next, room))
                return
            self._append_to(member, progress, tuple(entries))

    def _append_to(self, member: Member, progress: Progress, entries: tuple[Entry, ...]) -> None:
        previous = entries[0].index - 1
        previous_term = self.log.term_at(previous)
        assert previous_term is not None
        self.send(member, Append(self.term, previous, previous_term, entries, self.commit), gated=False)
        progress.sent(entries[-1].index, sum(entry.size for entry in entries), self.around.now)

    def on_loaded(self, event: Loaded) -> None:
        progress = self.progress.get(event.to)
        if progress is None or not progress.loading:
            return
        progress.loading = False
        entries = event.entries
        # Between the question and the answer this broker may have lost and regained leadership, or cut its log.
        fits = event.first_index == progress.next and event.first_index >= self.log.start_index
        if fits and entries and all(self.log.term_at(entry.index) == entry.term for entry in entries):
            self._append_to(event.to, progress, entries)
        self.touch()

    def on_append_reply(self, sender: Member, message: AppendReply) -> None:
        progress = self.progress.get(sender)
        if progress is None:
            return
        if message.match is None:
            agree = self.log.last_at_most(min(message.hint_index, self.log.last_index), message.hint_term)
            if progress.refused(message.previous_index, min(agree, message.hint_index)):
                self.touch()
            return
        if message.match > self.log.last_index:
            raise InvariantBroken(f"{sender} confirms entry {message.match}, the leader's log ends before it")
        if progress.acknowledged(message.match, self.log.start_index, self.around.now):
            self.around.rows_due[self.id] = self
            if message.match > self.commit:
                self.count_replicas()
            if message.match == self.log.last_index:
                self.trim()
        self.touch()

    def on_retry_due(self) -> None:
        since = self.around.now - self.settings.retry_ms
        for member, progress in self.progress.items():
            if progress.stuck(since) and self.around.peer(member.broker_id).contact:
                progress.retry()
        if self.read_rounds:
            self.ask_readers()
        lags = any(
            p.match < self.log.last_index and self.around.peer(m.broker_id).contact for m, p in self.progress.items()
        )
        if lags or self.read_rounds:
            self.retry_due = self.around.now + self.settings.retry_ms
            self.wake_at(self.retry_due)
        self.touch()

    def resume(self, broker_id: int) -> None:
        """That broker is back: what was in flight to it is lost."""
        for member, progress in self.progress.items():
            if member.broker_id == broker_id:
                progress.retry()
                self.touch()

    # A follower keeps

    def on_append(self, sender: Member, message: Append) -> None:
        self.follow(sender)
        log = self.log
        previous = message.previous_index
        entries = message.entries
        match = max(previous + len(entries), self.commit)
        if previous < self.commit:
            # What is committed here agrees with every later leader's log, whether or not it is still stored.
            entries = entries[self.commit - previous :]
        elif log.term_at(previous) != message.previous_term:
            hint = log.last_at_most(min(previous - 1, log.last_index), message.previous_term)
            hint_term = log.term_at(hint)
            assert hint_term is not None
            self.send(sender, AppendReply(self.term, previous, None, hint, hint_term))
            return
        self.keep(entries)
        self.send(sender, AppendReply(self.term, previous, match))
        self.learn_commit(min(message.commit, match))

    def keep(self, entries: tuple[Entry, ...]) -> None:
        """Only a contradiction takes entries back: an old Append must not undo what a newer one has added."""
        log = self.log
        for entry in entries:
            if entry.index <= log.last_index:
                if log.term_at(entry.index) == entry.term:
                    continue
                self.truncate(entry.index)
            log.append(entry)
            if entry.kind is Kind.CONFIGURATION:
                self.adopt_configuration(entry)
        self.touch()

    def on_install_snapshot(self, sender: Member, message: InstallSnapshot) -> None:
        self.follow(sender)
        snapshot = message.snapshot
        before_start = snapshot.start_index - 1
        if before_start > self.commit:
            if self.log.term_at(before_start) == snapshot.previous_term:
                self.learn_commit(before_start)
            else:
                self.install(snapshot)
        self.send(sender, AppendReply(self.term, before_start, max(before_start, self.commit)))
