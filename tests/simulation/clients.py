"""Producers that retry, consumers that follow the log, readers of the end: the checks judge what each saw."""

from broker.raft.configuration import GroupId
from broker.raft.dedupe import Problem, Repeat
from broker.raft.entry import Kind, LogEntry, Stamp
from broker.raft.events import (
    DedupeOutcome,
    EntryCommitted,
    NotGroupLeader,
    NotReady,
    Outcome,
    PendingFull,
    Propose,
    QuorumFull,
    Read,
    ReadAt,
)
from myqueue.protocol.dedup_records import DedupRecord
from tests.simulation.checks import Violation
from tests.simulation.process import SETTINGS
from tests.simulation.world import World

TIMEOUT = 1_500_000


def acknowledge(world: World, group_id: GroupId, broker_id: int, body: bytes, outcome: Outcome) -> None:
    """The broker lets the answer go: from here on it is a promise."""
    node = world.brokers[broker_id].node
    group = node.groups.get(group_id) if node is not None else None
    if group is None or not isinstance(outcome, EntryCommitted):
        return
    world.stats["acknowledged"] += 1
    term = group.log.term_at(outcome.log_index) or group.term
    holders = world.holders(group, outcome.log_index, term)
    world.checks.acknowledged(group, body, outcome.base_offset, holders)


class Producer:
    """One message at a time. `kind`: "stamped" by sequence, "keyed" by idempotency key, or "plain" without a name."""

    def __init__(self, world: World, group_id: GroupId, number: int, kind: str) -> None:
        self.world = world
        self.group_id = group_id
        self.number = number
        self.kind = kind
        self.guess: int | None = None
        self.sequence = 0
        self.epoch = 0
        self.made = 0
        self.body = b""
        self.count = 1
        self.attempt = 0
        self.uncertain = False
        self.stopped = False
        self.idle = True
        world.later(world.rng.randrange(1_000_000), self.begin)

    def begin(self) -> None:
        if self.stopped:
            return
        rng = self.world.rng
        if self.kind == "stamped" and rng.random() < 0.02:
            self.epoch += 1
            self.sequence = 0
        self.made += 1
        self.count = 1 if self.kind == "keyed" else rng.randint(1, 3)
        self.body = b"%d/%d/%d" % (self.group_id.partition, self.number, self.made) + b"." * rng.randrange(120)
        self.uncertain = False
        self.idle = False
        self.send()

    def send(self) -> None:
        world = self.world
        self.attempt += 1
        broker_id = self.guess or world.rng.choice(world.placement[self.group_id])
        self.guess = None
        if world.rng.random() < 0.03:
            # Lost on its way there. The caller cannot know that.
            self.uncertain = True
        else:
            world.later(world.rng.randrange(200, 4000), self._arrive, broker_id, self.attempt, self._request())
            if self.kind != "plain" and world.rng.random() < 0.05:
                world.later(
                    world.rng.randrange(1000, 1_000_000), self._arrive, broker_id, self.attempt, self._request()
                )
        world.later(TIMEOUT, self._timeout, self.attempt)

    def _request(self) -> Propose:
        stamp: Stamp | None = None
        records: tuple[DedupRecord, ...] = ()
        crc = len(self.body)
        if self.kind == "stamped":
            stamp = Stamp(self.number, self.epoch, self.sequence, crc)
        elif self.kind == "keyed":
            records = (DedupRecord(0, 0, crc, b"%08d@%07d" % (self.made, self.number)),)
        return Propose(self.world.fresh(), self.body, self.count, 0, stamp, records)

    def _arrive(self, broker_id: int, attempt: int, request: Propose) -> None:
        broker = self.world.brokers[broker_id]
        request = Propose(
            request.request, request.body, request.count, broker.wall(), request.stamp, request.dedup_records
        )

        def answer(outcome: Outcome, term: int) -> None:
            world = self.world
            acknowledge(world, self.group_id, broker_id, request.body, outcome)
            if world.rng.random() >= 0.03:
                world.later(world.rng.randrange(200, 4000), self._answered, attempt, request.body, outcome)

        broker.ask(self.group_id, request.request, request, answer)

    def _timeout(self, attempt: int) -> None:
        if attempt == self.attempt and not self.idle:
            self.uncertain = True
            self._again()

    def _answered(self, attempt: int, body: bytes, outcome: Outcome) -> None:
        if body != self.body or self.idle:
            return
        if isinstance(outcome, EntryCommitted):
            self._done()
        elif isinstance(outcome, DedupeOutcome):
            result = outcome.whole if self.kind == "stamped" else outcome.dedup_records[0]
            if isinstance(result, Repeat):
                known = self.world.checks.groups[self.group_id].bodies.get(body)
                if known != result.offset:
                    raise Violation("I4", f"{body!r} is said to be at {result.offset}, it is at {known}")
                self._done()
            elif isinstance(result, Problem) and attempt == self.attempt:
                raise Violation("I4 inside the window", f"{body!r} was refused: {result.value}")
        elif attempt == self.attempt:
            if isinstance(outcome, NotGroupLeader):
                self.guess = outcome.leader.broker_id if outcome.leader is not None else None
            if not isinstance(outcome, NotGroupLeader | NotReady | PendingFull | QuorumFull):
                self.uncertain = True
            elif not self.uncertain and self.kind == "plain" and self.world.rng.random() < 0.3:
                self.world.checks.not_written(self.group_id, body)
                self._done()
                return
            self._again()

    def _again(self) -> None:
        self.attempt += 1  # answers to the attempt before are late from here on
        if self.kind == "plain" and self.uncertain:
            self._done()  # without a name a second try could be a second message
        else:
            self.world.later(self.world.rng.randrange(5_000, 150_000), self._resend, self.body)

    def _resend(self, body: bytes) -> None:
        if body == self.body and not self.idle:  # a late answer may have settled it
            self.send()

    def _done(self) -> None:
        if self.kind == "stamped":
            self.sequence += self.count
        self.idle = True
        self.attempt += 1
        self.world.later(self.world.rng.randrange(20_000, 250_000), self.begin)


class PipelinedProducer:
    """Several batches in flight, as many as the log remembers; they overtake each other, and some are lost."""

    def __init__(self, world: World, group_id: GroupId, number: int) -> None:
        self.world = world
        self.group_id = group_id
        self.number = number
        self.guess: int | None = None
        self.epoch = 0
        self.sequence = 0  # of the next batch
        self.made = 0
        self.in_flight: dict[bytes, tuple[int, Stamp, int]] = {}  # body -> number, stamp and count, in order
        self.stopped = False
        world.later(world.rng.randrange(1_000_000), self.begin)
        world.later(TIMEOUT, self._resend)

    def begin(self) -> None:
        world = self.world
        world.later(world.rng.randrange(5_000, 150_000), self.begin)
        if self.stopped:
            return
        if self.sequence and not self.in_flight and world.rng.random() < 0.05:
            self.epoch, self.sequence = self.epoch + 1, 0
        while self._oldest() + SETTINGS.batches_window > self.made and world.rng.random() < 0.7:
            self.made += 1
            count = world.rng.randint(1, 3)
            body = b"%d/%d/%d" % (self.group_id.partition, self.number, self.made) + b"." * world.rng.randrange(60)
            self.in_flight[body] = (self.made, Stamp(self.number, self.epoch, self.sequence, len(body)), count)
            self.sequence += count
            self._send(body)

    def _oldest(self) -> int:
        """How many come before the first one without an answer, which must stay in the log's window."""
        return next((made for made, _, _ in self.in_flight.values()), self.made + 1) - 1

    def _send(self, body: bytes) -> None:
        world = self.world
        broker_id = self.guess or world.rng.choice(world.placement[self.group_id])
        copies = 0 if world.rng.random() < 0.05 else 2 if world.rng.random() < 0.05 else 1
        for _ in range(copies):
            longest = 1_000_000 if world.rng.random() < 0.05 else 6000
            world.later(world.rng.randrange(200, longest), self._arrive, broker_id, body, *self.in_flight[body][1:])

    def _resend(self) -> None:
        """What has no answer, in order."""
        self.world.later(self.world.rng.randrange(TIMEOUT // 2, TIMEOUT), self._resend)
        for body in self.in_flight:
            self._send(body)

    def _arrive(self, broker_id: int, body: bytes, stamp: Stamp, count: int) -> None:
        world = self.world
        broker = world.brokers[broker_id]
        request = world.fresh()

        def answer(outcome: Outcome, term: int) -> None:
            acknowledge(world, self.group_id, broker_id, body, outcome)
            if world.rng.random() >= 0.03:
                world.later(world.rng.randrange(200, 4000), self._answered, body, outcome)

        broker.ask(self.group_id, request, Propose(request, body, count, broker.wall(), stamp), answer)

    def _answered(self, body: bytes, outcome: Outcome) -> None:
        if body not in self.in_flight:
            return
        if isinstance(outcome, NotGroupLeader):
            self.guess = outcome.leader.broker_id if outcome.leader is not None else None
        if isinstance(outcome, DedupeOutcome):
            known = self.world.checks.groups[self.group_id].bodies.get(body)
            ahead = (Problem.GAP,) if self.epoch else (Problem.GAP, Problem.UNKNOWN_PRODUCER)
            if outcome.whole not in ahead and outcome.whole != Repeat(-1 if known is None else known):
                raise Violation("I4 inside the window", f"{body!r} at {known}: {outcome.whole}")
            if outcome.whole in ahead:
                return
        if isinstance(outcome, EntryCommitted | DedupeOutcome):
            del self.in_flight[body]


class Consumer:
    """Reads any replica, in order, from the first offset on."""

    def __init__(self, world: World, group_id: GroupId) -> None:
        self.world = world
        self.group_id = group_id
        self.position = 0
        world.later(world.rng.randrange(300_000), self.poll)

    def poll(self) -> None:
        world = self.world
        world.later(world.rng.randrange(50_000, 200_000), self.poll)
        broker = world.brokers[world.rng.choice(world.placement[self.group_id])]
        group = broker.node.groups.get(self.group_id) if broker.node is not None and not broker.paused else None
        if group is None:
            return
        broker.settle()  # readers learn what is applied from a finished round
        self.position = max(self.position, group.log.start_offset)
        file = broker.disk.files[self.group_id]
        for entry in list(file.entries.values()):
            if entry.index in file.bad:
                return
            if entry.index <= group.applied and entry.kind is Kind.MESSAGES and entry.base_offset >= self.position:
                self._take(entry)
        unapplied = broker.unapplied.get(self.group_id, [])
        unapplied[:] = [entry for entry in unapplied if entry.index > group.applied]
        for entry in unapplied:
            if entry.base_offset >= self.position:
                self._take(entry)

    def _take(self, entry: LogEntry) -> None:
        if entry.base_offset != self.position:
            raise Violation("I5", f"a consumer at {self.position} was given {entry.base_offset}")
        assert isinstance(entry.body, bytes)
        self.world.checks.consumed(self.group_id, entry.base_offset, entry.body)
        self.position = entry.end_offset


class EndReader:
    """Asks where the partition ends; the answer must cover all that was acknowledged before it asked."""

    def __init__(self, world: World, group_id: GroupId) -> None:
        self.world = world
        self.group_id = group_id
        world.later(world.rng.randrange(300_000), self.ask)

    def ask(self) -> None:
        world = self.world
        world.later(world.rng.randrange(20_000, 150_000), self.ask)
        broker = world.brokers[world.rng.choice(world.placement[self.group_id])]
        at_least = world.checks.groups[self.group_id].acknowledged_end

        def answer(outcome: Outcome, term: int) -> None:
            if isinstance(outcome, ReadAt):
                world.checks.end_read(self.group_id, outcome.end_offset, at_least)

        request = Read(world.fresh())
        broker.ask(self.group_id, request.request, request, answer)
