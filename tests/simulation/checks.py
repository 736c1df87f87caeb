"""What must hold, looked at after every step: Raft's four properties, the promise of the disk, and I1–I5 and I8."""

from collections import defaultdict
from dataclasses import dataclass, field

from broker.raft.configuration import GroupId, MemberId
from broker.raft.entry import Kind, LogEntry
from broker.raft.group import RaftGroup
from broker.raft.messages import Append, AppendReply, Message, VoteReply
from broker.raft.snapshot import Snapshot
from tests.simulation.disk import GroupFile


class Violation(Exception):
    def __init__(self, rule: str, detail: str) -> None:
        super().__init__(f"{rule}: {detail}")
        self.rule = rule


@dataclass
class Agreed:
    """What one group has committed, as seen from above."""

    entries: dict[int, LogEntry] = field(default_factory=dict)
    committed_in: dict[int, int] = field(default_factory=dict)
    values: dict[int, bytes] = field(default_factory=dict)  # by offset
    appended: dict[tuple[int, int], tuple[int, LogEntry]] = field(default_factory=dict)  # (index, term)
    leaders: dict[int, MemberId] = field(default_factory=dict)  # by term
    tables: dict[int, object] = field(default_factory=dict)  # replicated state by index
    stamps: dict[tuple[int, int, int], int] = field(default_factory=dict)  # -> offset
    keys: dict[bytes, int] = field(default_factory=dict)
    bodies: dict[bytes, int] = field(default_factory=dict)
    next_sequence: dict[tuple[int, int], int] = field(default_factory=dict)
    applied_by: dict[MemberId, int] = field(default_factory=dict)
    last_index: int = 0
    end_offset: int = 0
    acknowledging_term: int = 0
    acknowledged: dict[bytes, int] = field(default_factory=dict)  # value -> offset
    acknowledged_end: int = 0
    refused: set[bytes] = field(default_factory=set)  # reported as not written


class Checks:
    """`contract=False`: no look at disks and tables behind what is said, so that only effects can give a bug away.

    `lease=False`: clocks are wild, an old term may acknowledge (what is safely stored) after a newer one.
    """

    def __init__(self, *, contract: bool, lease: bool) -> None:
        self.groups: dict[GroupId, Agreed] = defaultdict(Agreed)
        self._contract = contract
        self._lease = lease

    # Election safety and leader completeness

    def leader(self, group: RaftGroup, votes: int) -> None:
        """`votes`: voters whose disks say that they chose it, or that they have gone on to a later term."""
        agreed = self.groups[group.id]
        known = agreed.leaders.setdefault(group.term, group.me)
        if known != group.me:
            raise Violation("election safety", f"{known} and {group.me} lead {group.id} in term {group.term}")
        if self._contract and votes < group.configuration.quorum:
            raise Violation("election safety", f"{group.me} leads term {group.term} with {votes} votes on disks")
        log = group.log
        for index in range(log.start_index, agreed.last_index + 1):
            if agreed.committed_in[index] < group.term and log.term_at(index) != agreed.entries[index].term:
                raise Violation("leader completeness", f"{group.me} leads term {group.term} without entry {index}")

    # Log matching

    def appended(self, group: RaftGroup, entries: tuple[LogEntry, ...]) -> None:
        registry = self.groups[group.id].appended
        for entry in entries:
            previous = group.log.term_at(entry.index - 1)
            if previous is None:
                continue
            known = registry.setdefault((entry.index, entry.term), (previous, entry))
            if known != (previous, entry):
                raise Violation("log matching", f"two entries {entry.index} of term {entry.term} in {group.id}")

    # Configurations come from the log

    def configured(self, group: RaftGroup) -> None:
        """Those beyond what the group has committed are in force because, and as long as, they are in the log."""
        if not self._contract:
            return
        registry = self.groups[group.id].appended
        for index, configuration in group.membership.configurations:
            if index <= group.state.dedupe_index:
                continue
            term = group.log.term_at(index)
            known = registry.get((index, term)) if term is not None else None
            if term is None or (known is not None and known[1].body != configuration):
                raise Violation("configuration in the log", f"{group.me} follows a change that its log does not hold")

    def installed(self, group: RaftGroup, snapshot: Snapshot) -> None:
        """What a replica has applied is on its disk and committed, also if its process has started again since."""
        applied = self.groups[group.id].applied_by.get(group.me, 0)
        if self._contract and snapshot.start_index <= applied:
            raise Violation("committed entries stay", f"{group.me} replaces entry {applied} by an older snapshot")

    # State machine safety

    def applied(self, group: RaftGroup, file: GroupFile, first: int, last: int) -> None:
        agreed = self.groups[group.id]
        agreed.applied_by[group.me] = max(last, agreed.applied_by.get(group.me, 0))
        for index in range(first, last + 1):
            entry = file.entries.get(index)
            if entry is None:
                raise Violation(
                    "durable before applied", f"{group.me} applied entry {index}, its disk does not hold it"
                )
            known = agreed.entries.get(index)
            if known is None:
                if index != agreed.last_index + 1:
                    raise Violation("state machine safety", f"entry {index} applied before entry {index - 1}")
                self._commit(agreed, entry, group.term)
            elif known != entry:
                raise Violation("state machine safety", f"{group.me} applied another entry {index} in {group.id}")
        if self._contract and group.state.dedupe_index == group.applied:
            table = (group.log.start_index, group.log.start_offset, group.applied_offset, group.state.dedupe.snapshot())
            if agreed.tables.setdefault(group.applied, table) != table:
                raise Violation("state machine safety", f"replicated state differs at entry {group.applied}")

    def committed(self, group: RaftGroup, entry: LogEntry, holders: int) -> None:
        """A leader lets readers have it before its own disk does; `holders` of its voters have it on disk."""
        if self._contract and all(holders < len(c.voters) // 2 + 1 for _, c in group.membership.configurations):
            raise Violation("I1 on a majority's disks", f"entry {entry.index} is on {holders} disks when it is shown")
        agreed = self.groups[group.id]
        for before in group.log.between(agreed.last_index + 1, entry.index):
            self._commit(agreed, before, group.term)
        if agreed.entries[entry.index] != entry:
            raise Violation("state machine safety", f"{group.me} shows another entry {entry.index} in {group.id}")

    def _commit(self, agreed: Agreed, entry: LogEntry, term: int) -> None:
        agreed.entries[entry.index] = entry
        agreed.committed_in[entry.index] = term
        agreed.last_index = entry.index
        if entry.base_offset != agreed.end_offset:
            raise Violation("I2 gapless offsets", f"entry {entry.index} starts at offset {entry.base_offset}")
        if entry.kind is not Kind.MESSAGES:
            return
        assert isinstance(entry.body, bytes)
        agreed.end_offset = entry.end_offset
        agreed.values[entry.base_offset] = entry.body
        if entry.body in agreed.refused:
            raise Violation("I3", f"{entry.body!r} was reported as not written")
        if entry.body in agreed.bodies:
            raise Violation("I3/I4", f"{entry.body!r} was written twice")
        agreed.bodies[entry.body] = entry.base_offset
        if entry.stamp is not None:
            stamp = entry.stamp
            name = (stamp.producer_id, stamp.epoch, stamp.sequence)
            if name in agreed.stamps:
                raise Violation("I4", f"sequence {name} was written twice")
            agreed.stamps[name] = entry.base_offset
            expected = agreed.next_sequence.get(name[:2], 0)
            if stamp.sequence != expected:
                raise Violation("I5", f"sequence {stamp.sequence} of {name[:2]} comes where {expected} belongs")
            agreed.next_sequence[name[:2]] = stamp.sequence + entry.count
        for record in entry.dedup_records:
            if record.key in agreed.keys:
                raise Violation("I4", f"key {record.key!r} was written twice")
            agreed.keys[record.key] = entry.base_offset + record.position

    # Answers to clients

    def acknowledged(self, group: RaftGroup, body: bytes, offset: int, holders: int) -> None:
        """The leader answers that the value is written; `holders` of its voters have everything up to it on disk."""
        agreed = self.groups[group.id]
        if self._lease and agreed.acknowledging_term > group.term:
            raise Violation("I8", f"term {group.term} acknowledges after term {agreed.acknowledging_term}")
        agreed.acknowledging_term = group.term
        if self._contract and all(holders < len(c.voters) // 2 + 1 for _, c in group.membership.configurations):
            raise Violation("I1 on a majority's disks", f"{body!r} is on {holders} disks when it is acknowledged")
        if agreed.values.get(offset) not in (None, body):
            raise Violation("I2", f"{body!r} acknowledged at offset {offset}, which holds {agreed.values[offset]!r}")
        agreed.acknowledged[body] = offset
        agreed.acknowledged_end = max(agreed.acknowledged_end, offset + 1)

    def not_written(self, group_id: GroupId, body: bytes) -> None:
        agreed = self.groups[group_id]
        if body in agreed.bodies:
            raise Violation("I3", f"{body!r} is written and was reported as not written")
        agreed.refused.add(body)

    def end_read(self, group_id: GroupId, end_offset: int, at_least: int) -> None:
        if end_offset < at_least:
            raise Violation("I2 end offset", f"read {end_offset}, {at_least} was acknowledged before the read began")

    def consumed(self, group_id: GroupId, offset: int, value: bytes) -> None:
        if self.groups[group_id].values.get(offset) != value:
            raise Violation("I2", f"a consumer read {value!r} at {offset}, which is not what was committed")

    # The promise of the disk

    def spoken(self, file: GroupFile, message: Message) -> None:
        """A frame leaves: what it says must be on the sender's disk."""
        if not self._contract:
            return
        if isinstance(message, VoteReply | AppendReply | Append) and message.term > file.hard.term:
            raise Violation("durable before spoken", f"{file.me} speaks of term {message.term}")
        if isinstance(message, VoteReply) and message.granted and file.hard.term == message.term and not file.hard.vote:
            raise Violation("durable before spoken", f"{file.me} grants a vote that is not on its disk")
        if isinstance(message, AppendReply) and message.match is not None and message.match > file.last_index:
            raise Violation("durable before spoken", f"{file.me} confirms entry {message.match}")

    # After healing

    def drained(self, group_id: GroupId, values: dict[int, bytes], start_offset: int) -> None:
        agreed = self.groups[group_id]
        for body, offset in agreed.acknowledged.items():
            if offset >= start_offset and values.get(offset) != body:
                raise Violation("I1", f"{body!r} was acknowledged at offset {offset} and is lost")
        for offset, value in values.items():
            if agreed.values.get(offset) != value:
                raise Violation("I2", f"offset {offset} holds {value!r}")
