"""The subscription state: each offset is handed out once and in order, and none is committed too early."""

import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from myqueue import NoLeader, Unavailable
from myqueue.background_errors import LEASES, BackgroundErrors
from myqueue.decoding import Chunk, Messages
from myqueue.protocol.batch import SCHEMA
from myqueue.subscription_state import PartitionLease, SubscriptionState

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
        self.subscription = SubscriptionState()
        self.cursors = [0] * PARTITIONS
        self.leases: dict[int, PartitionLease] = {}
        self.generation = 0
        self.messages: Messages | None = None
        self.handed: list[int] = [0] * PARTITIONS  # the next offset that must come
        self.handled: list[int] = [0] * PARTITIONS  # all before it were followed by another request

    def _told(self) -> None:
        self.leases = {
            p: PartitionLease(p, lease.generation, self.cursors[p], lease.revoking) for p, lease in self.leases.items()
        }
        before = {state.partition: (state, state.resets) for state in self.subscription}
        if not self.leases:
            for state in list(self.subscription):
                self.subscription.lose(state.partition)
        self.subscription.renew(list(self.leases.values()), 0.0, FOREVER)
        for state in self.subscription:
            if before.get(state.partition) != (state, state.resets):
                self.handed[state.partition] = self.handled[state.partition] = state.position

    @rule(partition=st.integers(0, PARTITIONS - 1))
    def lease_comes(self, partition: int) -> None:
        self.generation += 1
        self.leases[partition] = PartitionLease(partition, self.generation, 0, False)
        self._told()

    @rule(partition=st.integers(0, PARTITIONS - 1))
    def lease_goes(self, partition: int) -> None:
        self.leases.pop(partition, None)
        self._told()

    @rule(partition=st.integers(0, PARTITIONS - 1), revoking=st.booleans())
    def lease_is_wanted_by_others(self, partition: int, revoking: bool) -> None:
        if partition in self.leases:
            lease = self.leases[partition]
            self.leases[partition] = PartitionLease(partition, lease.generation, 0, revoking)
            self._told()

    @rule()
    def wanted_leases_are_released(self) -> None:
        for partition in self.subscription.to_release():
            self._commit(partition)
            del self.leases[partition]
            self.subscription.lose(partition)

    @rule(partition=st.integers(0, PARTITIONS - 1), offset=st.integers(0, 30))
    def seek(self, partition: int, offset: int) -> None:
        self.cursors[partition] = offset
        if partition in self.leases:
            self.generation += 1
            self.leases[partition] = PartitionLease(partition, self.generation, offset, self.leases[partition].revoking)
            self.subscription.seek(partition, offset, self.generation)
            self.handed[partition] = self.handled[partition] = offset

    @rule(counts=st.lists(st.integers(1, 5), max_size=3), late=st.booleans())
    def fetch(self, counts: list[int], late: bool) -> None:
        state = self.subscription.next_to_fetch(0.0, 1 << 20)
        if state is None:
            return
        offset = at = state.fetched
        chunks = []
        for count in counts:
            chunks.append(chunk(state.partition, at, count))
            at += count
        if late:
            self.lease_is_wanted_by_others(state.partition, True)
            self.lease_is_wanted_by_others(state.partition, False)
        self.subscription.put(state, offset, chunks)
        state.fetching = False

    @rule(count=st.integers(1, 12))
    def read(self, count: int) -> None:
        for _ in range(count):
            message = next(self.messages.iterator, None) if self.messages is not None else None
            if message is None:
                self._finish()
                taken = self.subscription.take(0.0)
                if taken is None:
                    return
                self.messages = Messages("t", taken[1])
                self.subscription.hand_out(*taken, self.messages)
                message = next(self.messages.iterator)
            assert message.offset == self.handed[message.partition]
            self.handled[message.partition] = message.offset
            self.handed[message.partition] = message.offset + 1

    @rule(count=st.integers(1, 12))
    def read_table(self, count: int) -> None:
        self.subscription.recall_in_flight()
        self._finish()
        while count > 0 and (taken := self.subscription.take(0.0)) is not None:
            state, rows = taken
            if rows.count > count:
                self.subscription.put_back(state, rows.rest(count))
                rows = rows.start(count)
            self.subscription.hand_out(state, rows, None)
            assert rows.first == self.handed[rows.partition]
            self.handed[rows.partition] = rows.end
            count -= rows.count

    def _finish(self) -> None:
        self.messages = None
        self.subscription.finish_in_flight()
        for state in self.subscription:
            self.handled[state.partition] = self.handed[state.partition]

    @rule(partition=st.integers(0, PARTITIONS - 1))
    def commit(self, partition: int) -> None:
        self._commit(partition)

    def _commit(self, partition: int) -> None:
        state = self.subscription.get(partition)
        if state is not None:
            offset = self.subscription.handled(include_in_flight=False)[partition]
            assert self.cursors[partition] <= offset <= self.handled[partition]
            self.cursors[partition] = offset
            self.subscription.committed(partition, offset, state.generation)

    @invariant()
    def offsets_are_in_order(self) -> None:
        positions = self.subscription.positions()
        for state in self.subscription:
            assert state.committed <= state.handled <= positions[state.partition] <= state.fetched
            assert positions[state.partition] == self.handed[state.partition]
            assert state.buffered == sum(waiting.size for waiting in state.chunks)


TestReading = Reading.TestCase
TestReading.settings = settings(max_examples=100, stateful_step_count=40)


def test_leases_that_ran_out_hand_out_nothing() -> None:
    subscription = SubscriptionState()
    subscription.renew([PartitionLease(0, 1, 0, False)], 0.0, 10.0)
    state = subscription.next_to_fetch(5.0, 1000)
    assert state is not None
    subscription.put(state, 0, [chunk(0, 0, 3)])
    state.fetching = False
    assert subscription.ready(9.0)
    assert not subscription.ready(11.0)
    assert subscription.next_to_fetch(11.0, 1000) is None
    subscription.expire(11.0)
    subscription.renew([PartitionLease(0, 2, 0, False)], 10.0, 10.0)
    assert state.fetched == 0  # what came under the old lease is fetched again


def test_a_full_buffer_is_not_fetched_into() -> None:
    subscription = SubscriptionState()
    subscription.renew([PartitionLease(0, 1, 0, False), PartitionLease(1, 2, 0, False)], 0.0, FOREVER)
    first = subscription.next_to_fetch(0.0, 1)
    assert first is not None
    subscription.put(first, 0, [chunk(first.partition, 0, 3)])
    first.fetching = False
    second = subscription.next_to_fetch(0.0, 1)
    assert second is not None
    assert second is not first
    assert subscription.next_to_fetch(0.0, 1) is None


def test_background_errors_are_raised_when_they_last() -> None:
    errors = BackgroundErrors(grace_s=10.0)
    errors.record(2, NoLeader(), 0.0)
    errors.record(2, Unavailable(), 9.0)
    assert errors.overdue(9.0) is None
    assert errors.next_overdue() == 10.0
    assert isinstance(errors.overdue(10.0), Unavailable)
    assert errors.overdue(11.0) is None  # listed once
    errors.clear(2)
    assert errors.next_overdue() is None
    errors.record(2, NoLeader(), 0.0)
    errors.record(LEASES, NoLeader(), 5.0)
    errors.keep_only([])
    assert errors.next_overdue() == 15.0
