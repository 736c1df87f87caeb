"""A disk that is full: appends are refused, reads go on, and it heals by itself when there is room again."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from broker.raft.effects import Persist
from broker.raft.events import AdvanceLogStart, EntryCommitted
from broker.raft.snapshot import HardState
from broker.storage.disk import NoSpace
from broker.storage.memory_disk import MemoryDisk
from broker.storage.writer import Owed, Save
from myqueue.protocol.errors import DiskFull, MyQueueError, Overloaded
from tests.broker_store import TOPIC_ID, Store, append, on_loop, read_all
from tests.fault_disk import Fault, FaultDisk
from tests.waiting import throughout, until

LIMIT_BYTES = 6 << 20
JOURNAL_BYTES = 1 << 20
SIZE = 100_000


@pytest.fixture(params=["memory", "fault"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    memory = MemoryDisk(LIMIT_BYTES)
    disk = memory if request.param == "memory" else FaultDisk(limit_bytes=LIMIT_BYTES)
    store = Store(disk, journal_segment_bytes=JOURNAL_BYTES)
    yield store
    store.close()
    memory.close()


def fill(store: Store, partition_id: int = 0) -> int:
    """Until it is refused with nothing in flight; how many there are. What is being flushed counts twice for a moment:
    in the file that it goes to, and as not flushed yet."""
    replica = store.replica(partition_id)
    refusal: MyQueueError | None = None
    count = 0
    while refusal is None and count < 100:
        is_settled = not store.writer.in_flight_bytes()
        try:
            append(replica, [b"x" * SIZE])
            count += 1
        except Overloaded:
            store.await_flushed()
        except MyQueueError as refused:
            refusal = refused if is_settled else None
            store.await_flushed()
    assert isinstance(refusal, DiskFull)
    assert (refusal.http_status, refusal.outcome) == (507, "not_written")
    return count


def test_a_full_disk_refuses_and_serves(store: Store) -> None:
    store.replica(1)
    count = fill(store)
    assert count > 5
    assert read_all(store.replica()) == [b"x" * SIZE] * count
    with pytest.raises(DiskFull):
        append(store.replica(1), [b"x" * SIZE])
    assert store.failures == []
    assert read_all(store.replica()) == [b"x" * SIZE] * count


def test_dropping_a_partition_heals_it(store: Store) -> None:
    store.replica(1)
    fill(store)
    store.partitions.drop(TOPIC_ID, 0)
    until(lambda: (store.disk.free_bytes() or 0) > 10 * SIZE, what="the room is there")
    for number in range(5):
        assert append(store.replica(1), [b"y" * SIZE])["results"] == [{"offset": number}]
    assert store.failures == []


def test_a_retention_cut_heals_it(store: Store) -> None:
    """It needs room itself, for the record and the dedupe table: that is what the reserve is for."""
    count = fill(store)
    replica = store.replica()
    index = replica.log.at_offset(count - 1)
    assert index is not None
    cut = on_loop(
        replica, replica.leader_requests.request(lambda number: AdvanceLogStart(number, index.index, count - 1, 0))
    )
    assert isinstance(cut, EntryCommitted)
    until(lambda: (store.disk.free_bytes() or 0) > 10 * SIZE, what="the room is there")
    assert append(replica, [b"y" * SIZE])["results"] == [{"offset": count}]
    assert store.failures == []


def test_votes_are_written_on_a_full_disk(store: Store) -> None:
    fill(store)
    replica = store.replica()
    voted = Persist(replica.name, HardState(99, store.me, 0), None, None, ())
    store.writer.submit(Save([Owed(replica.log, voted)])).result(10)
    store.reload()
    assert store.replica().log.group.hard.term >= 99


def test_everything_is_there_after_a_restart_on_a_full_disk(store: Store) -> None:
    count = fill(store)
    store.reload()
    assert read_all(store.replica()) == [b"x" * SIZE] * count
    assert store.replica().damage is None


def test_a_round_that_finds_no_room_is_written_when_there_is() -> None:
    """The disk says nothing about its free space beforehand: thin storage does not."""
    disk = FaultDisk()
    store = Store(disk, journal_segment_bytes=JOURNAL_BYTES, free_bytes=lambda: 1 << 40)
    replica = store.replica()
    append(replica, [b"a"], ["k0"])
    store.await_flushed()
    disk.limit_bytes = 0
    with ThreadPoolExecutor(2) as pool:
        sent = [pool.submit(append, replica, [b"x" * SIZE], ["k1"]) for _ in range(2)]
        throughout(lambda: not any(future.done() for future in sent), for_s=0.5, what="both appends wait for space")
        assert replica.messages(1, 1) is None
        assert read_all(replica) == [b"a"]
        disk.limit_bytes = None
        results = [future.result(10)["results"][0] for future in sent]
    assert sorted(result.get("duplicate", False) for result in results) == [False, True]
    assert {result["offset"] for result in results} == {1}
    assert read_all(replica) == [b"a", b"x" * SIZE]
    store.reload()
    assert read_all(store.replica()) == [b"a", b"x" * SIZE]
    assert store.failures == []
    store.close()


class FullPartitions(FaultDisk):
    """There is no room for the files of partitions; the journal was allocated before."""

    is_full = False

    def call(self, what: str) -> Fault | None:
        if self.is_full and what.startswith("write partitions/"):
            raise NoSpace(what)
        return super().call(what)


def test_files_that_find_no_room_wait_in_memory() -> None:
    disk = FullPartitions()
    store = Store(disk, journal_segment_bytes=JOURNAL_BYTES, free_bytes=lambda: 1 << 40)
    replica = store.replica()
    append(replica, [b"a"])
    store.await_flushed()
    disk.is_full = True
    for number in range(1, 5):
        assert append(replica, [b"x" * SIZE])["results"] == [{"offset": number}]
    throughout(lambda: store.store.unflushed_bytes() > 4 * SIZE, for_s=0.5, what="they are in memory")
    assert read_all(replica) == [b"a", *[b"x" * SIZE] * 4]
    for _ in range(20):
        with suppress(Overloaded):
            append(replica, [b"x" * SIZE])
    assert store.writer.in_flight_bytes() < 1 << 20, "what waits is bounded"
    with pytest.raises(Overloaded):
        append(replica, [b"x" * SIZE])
    count = len(read_all(replica))
    disk.is_full = False
    store.await_flushed()
    append(replica, [b"b"])
    assert read_all(replica) == [b"a", *[b"x" * SIZE] * (count - 1), b"b"]
    assert store.failures == []
    store.close()
