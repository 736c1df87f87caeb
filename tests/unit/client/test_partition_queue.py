"""Several batches of a partition in flight: order, no duplicates and true outcomes, whatever the network does.

The leader is the broker's own rule (`check_stamp`, a window of eight batches) with a waiting room. The network delays,
reorders and loses requests and answers; batches fail for good in the middle; other partitions take new epochs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.raft.dedupe import Problem, Producer, Repeat, SeenBatch, check_stamp
from broker.raft.entry import Stamp as LogStamp
from myqueue import append_retry
from myqueue.accumulator import Accumulator
from myqueue.append_retry import NextStep
from myqueue.partition_queue import WINDOW, Batch
from myqueue.producer_identity import Sequences, Stamp
from myqueue.protocol import errors
from myqueue.send_buffer import SendBuffer

ERRORS: dict[Problem, Callable[[], errors.MyQueueError]] = {
    Problem.GAP: errors.SequenceGap,
    Problem.CONFLICT: errors.IdempotencyConflict,
    Problem.FENCED: errors.ProducerFenced,
    Problem.UNKNOWN_PRODUCER: errors.UnknownProducer,
    Problem.FORGOTTEN: errors.UnknownProducer,
}


@dataclass(eq=False)
class Request:
    """Content and stamp, as they are on the wire."""

    batch: Batch
    number: int
    stamp: Stamp
    values: tuple[bytes, ...]
    answered: bool = False  # for the client: also when it has given up waiting


class Leader:
    """One partition's log."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.known: Producer | None = None
        self.waiting: list[Request] = []

    def check(self, request: Request) -> Repeat | Problem | None:
        _, epoch, sequence = request.stamp
        crc = hash(request.values) & 0xFFFFFFFF
        return check_stamp(self.known, LogStamp(3, epoch, sequence, crc=crc), len(request.values))

    def write(self, request: Request) -> int:
        _, epoch, sequence = request.stamp
        seen = SeenBatch(sequence, len(request.values), hash(request.values) & 0xFFFFFFFF, len(self.values))
        before = self.known.batches if self.known is not None and self.known.epoch == epoch else ()
        self.known = Producer(epoch, (*before, seen)[-WINDOW:])
        self.values += request.values
        return seen.base_offset


class Network:
    """Steps are chosen with weights by `chance`: most requests arrive, some are lost, late or refused."""

    def __init__(self, chance: Random, partitions: int) -> None:
        self.chance = chance
        self.sequences = Sequences(3, 0)
        self.accumulator = Accumulator(
            "t",
            partitions,
            self.sequences,
            batch_bytes=3,
            linger_s=0.0,
            delivery_timeout_s=1e9,
            clock=lambda: 0.0,
            buffer=SendBuffer(1 << 20),
        )
        self.partitions = partitions
        self.leaders = [Leader() for _ in range(partitions)]
        self.requests: list[Request] = []  # in the network: the leader may still get them
        self.unanswered: list[Request] = []  # the client waits for them
        self.sent: list[list[bytes]] = [[] for _ in range(partitions)]
        self.completed: list[Batch] = []
        self.most_in_flight = 0
        self.count = 0

    def run(self, steps: int, trouble: float) -> None:
        calm = [self.send, self.send, self.send, self.take, self.take, self.arrives, self.arrives, self.arrives]
        troubled = [
            self.a_gap_remains,
            self.is_refused,
            self.times_out,
            self.is_lost,
            self.fails_for_good,
            self.another_partition_takes_an_epoch,
        ]
        for _ in range(steps):
            self.chance.choice(troubled if self.chance.random() < trouble else calm)()
            self.check_logs()
            self.check_window()
        self.finish()

    def send(self) -> None:
        partition = self.chance.randrange(self.partitions)
        for _ in range(self.chance.randint(1, 4)):
            self.count += 1
            value = b"%d" % self.count
            self.sent[partition].append(value)
            self.accumulator.add(value, None, partition, 1, None, self.chance.randint(1, 3))

    def take(self) -> None:
        for _ in range(self.chance.randint(1, 8)):
            batch = self.accumulator.take(0.0)
            if batch is None:
                return
            if batch.stamp is None:
                if self.sequences.stamp(batch.partition) is None:
                    self.sequences.renew(3, self.sequences.epoch + 1)
                batch.queue.stamp(batch)
            assert batch.stamp is not None
            request = Request(batch, batch.attempt, batch.stamp, tuple(batch.values))
            self.requests.append(request)
            self.unanswered.append(request)
            self.most_in_flight = max(self.most_in_flight, len(self.unanswered))

    def arrives(self) -> None:
        """At the leader, in any order, also after the client has given it up."""
        if not self.requests:
            return
        request = self.requests.pop(0 if self.chance.random() < 0.6 else self.chance.randrange(len(self.requests)))
        self._arrive(request, self.chance.random() < 0.9)

    def _arrive(self, request: Request, answer_arrives: bool) -> None:
        leader = self.leaders[request.batch.partition]
        if leader.check(request) is Problem.GAP and len(leader.waiting) < WINDOW:
            leader.waiting.append(request)
            return
        self._handle(leader, request, answer_arrives)
        while ready := [waiting for waiting in leader.waiting if leader.check(waiting) is not Problem.GAP]:
            leader.waiting.remove(ready[0])
            self._handle(leader, ready[0], answer_arrives)

    def a_gap_remains(self) -> None:
        leader = self.chance.choice(self.leaders)
        if leader.waiting:
            self._handle(leader, leader.waiting.pop(0), True)

    def is_refused(self) -> None:
        """By a broker that does not lead, say: not written, to be tried again."""
        if self.requests:
            request = self.requests.pop(self.chance.randrange(len(self.requests)))
            self._answer(request, errors.NotLeader(outcome="not_written"))

    def times_out(self) -> None:
        """The client stops waiting; the request may still arrive."""
        if self.unanswered:
            self._answer(self.chance.choice(self.unanswered), errors.Unavailable(outcome="unknown"))

    def is_lost(self) -> None:
        if self.requests:
            request = self.requests.pop(self.chance.randrange(len(self.requests)))
            self._answer(request, errors.Unavailable(outcome="unknown"))

    def fails_for_good(self) -> None:
        """At its deadline after this attempt, or because the server says so."""
        if not self.unanswered:
            return
        request = self.chance.choice(self.unanswered)
        if request in self.requests and self.chance.random() < 0.5:
            self.requests.remove(request)
            self._answer(request, errors.TooLarge(outcome="not_written"), last=True)
        else:
            self._answer(request, errors.Unavailable(outcome="unknown"), last=True)

    def another_partition_takes_an_epoch(self) -> None:
        self.sequences.renew(3, self.sequences.epoch + 1)

    def _handle(self, leader: Leader, request: Request, answer_arrives: bool) -> None:
        result = leader.check(request)
        if result is None:
            offset = leader.write(request)
        elif isinstance(result, Repeat):
            offset = result.offset
        else:
            self._answer(request, ERRORS[result]() if answer_arrives else errors.Unavailable(outcome="unknown"))
            return
        self._answer(request, offset if answer_arrives else errors.Unavailable(outcome="unknown"))

    def _answer(self, request: Request, answer: int | errors.MyQueueError, *, last: bool = False) -> None:
        """As Sender does it."""
        if request.answered:
            return
        request.answered = True
        self.unanswered.remove(request)
        batch = request.batch
        if not self.accumulator.awaits(batch, request.number):
            return
        if isinstance(answer, int):
            self.accumulator.stored(batch, answer)
        else:
            assert not isinstance(answer, errors.ProducerFenced), "its own epochs must not fence what counts"
            batch.maybe_written = batch.maybe_written or answer.outcome != "not_written"
            following = append_retry.next_step(answer, batch.maybe_written, batch.alone)
            if following is NextStep.FAIL or last:
                answer.outcome = "unknown" if batch.maybe_written else "not_written"
                self.accumulator.failed(batch, answer, log_disagrees=append_retry.log_disagrees(answer))
            else:
                self.accumulator.retry(batch, 0.0, new_epoch=following is NextStep.NEW_EPOCH)
        while (decided := self.accumulator.next_decided(batch.queue)) is not None:
            self.completed.append(decided)
            self.accumulator.complete(decided)

    def check_logs(self) -> None:
        for sent, leader in zip(self.sent, self.leaders, strict=True):
            numbers = list(map(int, leader.values))
            assert numbers == sorted(set(numbers)), "out of order or doubled"
            assert set(leader.values) <= set(sent)

    def check_window(self) -> None:
        for queue in self.accumulator._queues:
            undecided = [index for index, batch in enumerate(queue.batches) if batch.outcome is None]
            stamped = [index for index, batch in enumerate(queue.batches) if batch.stamp is not None]
            assert not stamped or not undecided or stamped[-1] - undecided[0] < WINDOW

    def finish(self) -> None:
        """The network works again: everything comes to an end, and what the producer was told is true."""
        self.accumulator.flushing = True
        for _ in range(1000):
            self.take()
            while self.requests:
                self._arrive(self.requests.pop(0), True)
            for leader in self.leaders:
                while leader.waiting:
                    self._handle(leader, leader.waiting.pop(0), True)
            if not self.accumulator.incomplete:
                break
        assert not self.accumulator.incomplete, "it does not come to an end"
        assert self.accumulator._buffer.used == 0
        self.check_logs()
        completed: list[list[bytes]] = [[] for _ in range(self.partitions)]
        for batch in self.completed:
            values, log = batch.values, self.leaders[batch.partition].values
            completed[batch.partition] += values
            if isinstance(batch.outcome, int):
                assert log[batch.outcome : batch.outcome + batch.count] == values
            elif batch.outcome is not None and batch.outcome.outcome == "not_written":
                assert not set(values) & set(log)
        assert completed == self.sent, "callbacks would run out of order"


@given(st.integers(0, 1 << 32), st.integers(1, 2), st.sampled_from([0.0, 0.05, 0.15, 0.4]))
@settings(max_examples=300, deadline=None)
def test_order_no_duplicates_and_true_outcomes(seed: int, partitions: int, trouble: float) -> None:
    Network(Random(seed), partitions).run(150, trouble)


def test_the_window_is_used() -> None:
    network = Network(Random(1), 1)
    network.run(400, 0.0)
    assert network.most_in_flight == WINDOW
