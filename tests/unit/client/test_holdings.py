"""What is held, handed out, handled and committed: each offset once and in order, and none committed too early."""

import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from myqueue import NoLeader, Unavailable
from myqueue.decoding import Chunk, Messages
from myqueue.holdings import Holdings, Lease
from myqueue.protocol.batch import SCHEMA
from myqueue.troubles import LEASES, Troubles

PARTITIONS = 3
FOREVER = 1e9


def chunk(partition: int, first: int, count: int) -> Chunk:
    columns = [
        pa.nulls(count, pa.binary()),
        pa.array([str(first + number).encode() for number in range(count)], pa.binary()),
        pa.array([0] * count, pa.int64()),
        pa.nulls(count, SCHEMA.field("headers").type),
    ]
    rows = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    return Chunk(partition, first, count, rows, None, rows.nbytes)


class Reading(RuleBasedStateMachine):
    """One member whose leases come and go; `cursors` is what the cluster knows."""

    def __init__(self) -> None:
        super().__init__()
        self.holdings = Holdings()
        self.cursors = [0] * PARTITIONS
        self.leases: dict[int, Lease] = {}
        self.generation = 0
        self.messages: Messages | None = None
        self.handed: list[int] = [0] * PARTITIONS  # the next offset that must come
        self.handled: list[int] = [0] * PARTITIONS  # all before it were followed by another request

    def _told(self) -> None:
        self.leases = {
            p: Lease(p, lease.generation, self.cursors[p], lease.revoking) for p, lease in self.leases.items()
        }
        before = {holding.partition: (holding, holding.restarts) for holding in self.holdings}
        if not self.leases:
            for holding in list(self.holdings):
                self.holdings.lose(holding.partition)
        self.holdings.renew(list(self.leases.values()), 0.0, FOREVER)
        for holding in self.holdings:
            if before.get(holding.partition) != (holding, holding.restarts):
                self.handed[holding.partition] = self.handled[holding.partition] = holding.position

    @rule(partition=st.integers(0, PARTITIONS - 1))
    def lease_comes(self, partition: int) -> None:
        self.generation += 1
        self.leases[partition] = Lease(partition, self.generation, 0, False)
        self._told()

    @rule(partition=st.integers(0, PARTITIONS - 1))
    def lease_goes(self, partition: int) -> None:
        self.leases.pop(partition, None)
        self._told()

    @rule(partition=st.integers(0, PARTITIONS - 1), revoking=st.booleans())
    def lease_is_wanted_by_others(self, partition: int, revoking: bool) -> None:
        if partition in self.leases:
            lease = self.leases[partition]
            self.leases[partition] = Lease(partition, lease.generation, 0, revoking)
            self._told()

    @rule()
    def wanted_leases_are_released(self) -> None:
        for partition in self.holdings.releasable():
            self._commit(partition)
            del self.leases[partition]
            self.holdings.lose(partition)

    @rule(partition=st.integers(0, PARTITIONS - 1), offset=st.integers(0, 30))
    def seek(self, partition: int, offset: int) -> None:
        self.cursors[partition] = offset
        if partition in self.leases:
            self.generation += 1
            self.leases[partition] = Lease(partition, self.generation, offset, self.leases[partition].revoking)
            self.holdings.seek(partition, offset, self.generation)
            self.handed[partition] = self.handled[partition] = offset

    @rule(counts=st.lists(st.integers(1, 5), max_size=3), late=st.booleans())
    def fetch(self, counts: list[int], late: bool) -> None:
        holding = self.holdings.next_to_fetch(0.0, 1 << 20)
        if holding is None:
            return
        offset = at = holding.fetched
        chunks = []
        for count in counts:
            chunks.append(chunk(holding.partition, at, count))
            at += count
        if late:
            self.lease_is_wanted_by_others(holding.partition, True)
            self.lease_is_wanted_by_others(holding.partition, False)
        self.holdings.put(holding, offset, chunks)
        holding.fetching = False

    @rule(count=st.integers(1, 12))
    def read(self, count: int) -> None:
        for _ in range(count):
            message = next(self.messages.iterator, None) if self.messages is not None else None
            if message is None:
                self._finish()
                taken = self.holdings.take(0.0)
                if taken is None:
                    return
                self.messages = Messages("t", taken[1])
                self.holdings.hand_out(*taken, self.messages)
                message = next(self.messages.iterator)
            assert message.offset == self.handed[message.partition]
            self.handled[message.partition] = message.offset
            self.handed[message.partition] = message.offset + 1

    @rule(count=st.integers(1, 12))
    def read_table(self, count: int) -> None:
        self.holdings.take_back_rest()
        self._finish()
        while count > 0 and (taken := self.holdings.take(0.0)) is not None:
            holding, rows = taken
            if rows.count > count:
                self.holdings.put_back(holding, rows.rest(count))
                rows = rows.start(count)
            self.holdings.hand_out(holding, rows, None)
            assert rows.first == self.handed[rows.partition]
            self.handed[rows.partition] = rows.end
            count -= rows.count

    def _finish(self) -> None:
        self.messages = None
        self.holdings.finish_hand()
        for holding in self.holdings:
            self.handled[holding.partition] = self.handed[holding.partition]

    @rule(partition=st.integers(0, PARTITIONS - 1))
    def commit(self, partition: int) -> None:
        self._commit(partition)

    def _commit(self, partition: int) -> None:
        holding = self.holdings.get(partition)
        if holding is not None:
            offset = self.holdings.handled(with_hand=False)[partition]
            assert self.cursors[partition] <= offset <= self.handled[partition]
            self.cursors[partition] = offset
            self.holdings.committed(partition, offset, holding.generation)

    @invariant()
    def offsets_are_in_order(self) -> None:
        positions = self.holdings.positions()
        for holding in self.holdings:
            assert holding.committed <= holding.handled <= positions[holding.partition] <= holding.fetched
            assert positions[holding.partition] == self.handed[holding.partition]
            assert holding.buffered == sum(waiting.size for waiting in holding.chunks)


TestReading = Reading.TestCase
TestReading.settings = settings(max_examples=100, stateful_step_count=40)


def test_leases_that_ran_out_hand_out_nothing() -> None:
    holdings = Holdings()
    holdings.renew([Lease(0, 1, 0, False)], 0.0, 10.0)
    holding = holdings.next_to_fetch(5.0, 1000)
    assert holding is not None
    holdings.put(holding, 0, [chunk(0, 0, 3)])
    holding.fetching = False
    assert holdings.ready(9.0)
    assert not holdings.ready(11.0)
    assert holdings.next_to_fetch(11.0, 1000) is None
    holdings.expire(11.0)
    holdings.renew([Lease(0, 2, 0, False)], 10.0, 10.0)
    assert holding.fetched == 0  # what came under the old lease is fetched again


def test_a_full_buffer_is_not_fetched_into() -> None:
    holdings = Holdings()
    holdings.renew([Lease(0, 1, 0, False), Lease(1, 2, 0, False)], 0.0, FOREVER)
    first = holdings.next_to_fetch(0.0, 1)
    assert first is not None
    holdings.put(first, 0, [chunk(first.partition, 0, 3)])
    first.fetching = False
    second = holdings.next_to_fetch(0.0, 1)
    assert second is not None
    assert second is not first
    assert holdings.next_to_fetch(0.0, 1) is None


def test_troubles_are_told_when_they_last() -> None:
    troubles = Troubles(patience_s=10.0)
    troubles.begin(2, NoLeader(), 0.0)
    troubles.begin(2, Unavailable(), 9.0)
    assert troubles.to_tell(9.0) is None
    assert troubles.next_at() == 10.0
    assert isinstance(troubles.to_tell(10.0), Unavailable)
    assert troubles.to_tell(11.0) is None  # told once
    troubles.over(2)
    assert troubles.next_at() is None
    troubles.begin(2, NoLeader(), 0.0)
    troubles.begin(LEASES, NoLeader(), 5.0)
    troubles.forget_others([])
    assert troubles.next_at() == 15.0
