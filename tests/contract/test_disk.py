"""What only the disk promises: everything acknowledged is there again, and a folder that is not ours is refused."""

import multiprocessing
import shutil
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import structlog
from prometheus_client import CollectorRegistry

from broker.config import BrokerSettings
from broker.metrics import Metrics
from broker.raft_service import Storage
from broker.replica import Replica
from broker.storage.disk import DiskError, StorageRefused
from broker.storage.journal import Journal
from broker.storage.real_disk import RealDisk
from broker.storage.recovery import open_store
from broker.storage.round import Round
from broker.storage.writer import Change
from myqueue.protocol.errors import Overloaded
from service.settings import load
from tests.broker_store import BROKER_ID, TOPIC_ID, Store, append, contents, read_all
from tests.fault_disk import Fault, FaultDisk
from tests.waiting import until

JOURNAL_BYTES = 1 << 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def store(folder: Path) -> Iterator[Store]:
    store = Store(folder)
    yield store
    store.close()


def test_everything_is_there_after_a_restart(store: Store, folder: Path) -> None:
    replica = store.replica()
    append(replica, [b"a", b"b"], ["k0", None])
    append(replica, [b"c"])
    store.close()
    again = Store(folder)
    try:
        replica = again.replica()
        assert read_all(replica) == [b"a", b"b", b"c"]
        assert append(replica, [b"a", b"d"], ["k0", "k1"])["results"] == [
            {"offset": 0, "duplicate": True},
            {"offset": 3},
        ]
        assert append(replica, [b"other"], ["k0"])["results"] == [{"error_code": 40903}]
        assert again.store.incarnation == store.store.incarnation
    finally:
        again.close()


def test_the_window_after_a_restart_is_the_window_before(folder: Path) -> None:
    store = Store(folder, dedupe_window=3)
    for number in range(6):
        append(store.replica(), [b"x", b"%d" % number], [None, f"k{number}"])
    store.close()
    again = Store(folder, dedupe_window=3)
    try:
        offsets = [append(again.replica(), [b"%d" % n], [f"k{n}"])["results"][0] for n in (3, 4, 5, 2)]
        assert offsets[:3] == [{"offset": 2 * n + 1, "duplicate": True} for n in (3, 4, 5)]
        assert offsets[3] == {"offset": 12}
    finally:
        again.close()


def test_a_journal_cut_anywhere_opens_as_a_prefix() -> None:
    """Nothing from some place on had reached the disk."""
    disk = FaultDisk()
    store = Store(disk, journal_segment_bytes=JOURNAL_BYTES)
    replica = store.replica()
    sent = [b"message %d" % number for number in range(5)]
    for number, value in enumerate(sent):
        append(replica, [value], [f"k{number}"])
    taken = disk.copy()
    store.close()
    name = next(name for name in disk.names() if name.startswith("journal-") and sent[4] in taken.contents(name))
    journal = taken.contents(name)
    end = journal.index(sent[4]) + 4096
    seen = set()
    for cut in range(journal.index(sent[0]) // 4096 * 4096, end, 2048):
        copy = taken.copy()
        copy.overwrite(name, bytes(len(journal) - cut), cut)
        opened = Store(copy, journal_segment_bytes=JOURNAL_BYTES)
        try:
            values = read_all(opened.replica())
            assert values == sent[: len(values)]
            seen.add(len(values))
            assert [report["damaged"] for report in opened.partitions.reports()] == [None]
        finally:
            opened.close()
    assert seen == set(range(6)), "the cuts met every state in between"


def taken(replica: Replica, value: bytes) -> bool:
    """False when too much waits for the partitions' files: a busy machine may be behind with them for a moment."""
    try:
        append(replica, [value])
    except Overloaded:
        return False
    return True


def test_segments_of_the_journal_are_used_again_under_load(folder: Path) -> None:
    store = Store(folder, journal_segment_bytes=JOURNAL_BYTES)
    try:
        replica = store.replica()
        for _ in range(300):
            until(lambda: taken(replica, b"x" * 20_000), within_s=10, pause_s=0.001, what="upkeep makes room")
        names = [name for name in store.disk.names() if name.startswith("journal-")]
        assert len(names) <= 4
        assert store.journal.segment > 6
        store.reload()
        assert read_all(store.replica()) == [b"x" * 20_000] * 300
    finally:
        store.close()


def test_an_erased_folder_comes_back_under_another_incarnation(store: Store, folder: Path) -> None:
    store.close()
    shutil.rmtree(folder)
    again = Store(folder)
    assert again.store.incarnation != store.store.incarnation
    assert len(again.store.incarnation) == 16
    again.close()


# Folders that are refused


def locked(folder: Path) -> str:
    try:
        RealDisk(folder).close()
    except StorageRefused as error:
        return str(error)
    return ""


def test_two_processes_cannot_share_a_folder(store: Store, folder: Path) -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert "in use" in pool.submit(locked, folder).result(30)
        store.close()
        assert pool.submit(locked, folder).result(30) == ""


def test_the_folder_of_another_broker_is_refused_and_left_alone(store: Store, folder: Path) -> None:
    append(store.replica(), [b"a"])
    store.close()
    disk = RealDisk(folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    try:
        with pytest.raises(StorageRefused, match=f"belongs to broker {BROKER_ID}, not to broker 2"):
            open_store(disk, Journal(disk), structlog.get_logger(), broker_id=2, segment_bytes=1 << 20)
    finally:
        disk.close()
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_the_file_of_an_older_release_is_refused_with_what_to_do(folder: Path) -> None:
    folder.mkdir()
    old = folder / "broker.db"
    old.write_bytes(b"SQLite format 3\0")
    given = ["--port", "7001", "--raft-port", "7101", "--data-port", "7201", "--data-dir", str(folder)]
    more = ["--write-manager-urls", "http://127.0.0.1:7000", "--cluster-secret", "s" * 16]
    settings = load(BrokerSettings, "broker", "", [*given, *more])
    with pytest.raises(StorageRefused, match="one broker at a time") as refused:
        Storage(settings, Metrics(CollectorRegistry()), structlog.get_logger())
    assert "one replica" in str(refused.value)
    assert list(folder.iterdir()) == [old]


# Failures of the disk


def test_a_write_that_fails_stops_the_writer_for_good() -> None:
    disk = FaultDisk()
    store = Store(disk, journal_segment_bytes=JOURNAL_BYTES)
    append(store.replica(), [b"a"])
    store.await_flushed()
    disk.faults = dict.fromkeys(range(disk.calls + 1, disk.calls + 100), Fault.ERROR)
    store.writer.submit(Change(lambda round_: store.store.set_value(round_, "x", "y")))
    until(lambda: "writer" in store.failures, what="the failure is reported")
    assert store.writer.problem() == "the writing thread does not run"
    disk.after_kill()
    with pytest.raises(DiskError, match="earlier"):
        store.journal.append([])
    store.close()
    again = Store(disk, journal_segment_bytes=JOURNAL_BYTES)
    assert read_all(again.replica()) == [b"a"]
    again.close()


def test_a_round_that_cannot_be_built_stops_the_writer() -> None:
    store = Store(None)
    try:

        def fail(_: Round) -> None:
            raise RuntimeError("a bug")

        store.writer.submit(Change(fail))
        until(lambda: store.failures == ["writer"], what="the failure is reported")
        assert store.writer.problem() is not None
    finally:
        store.close()


class FailingPartitions(FaultDisk):
    """The files of partitions cannot be written, the journal can."""

    failing = False

    def call(self, what: str) -> Fault | None:
        if self.failing and " partitions/" in what:
            raise DiskError(what)
        return super().call(what)


def test_upkeep_that_fails_stops_the_process() -> None:
    disk = FailingPartitions()
    store = Store(disk, journal_segment_bytes=JOURNAL_BYTES)
    append(store.replica(), [b"a"])
    store.await_flushed()
    disk.failing = True
    append(store.replica(), [b"b"])
    until(lambda: store.failures == ["upkeep"], what="the failure is reported")
    until(lambda: not store.upkeep.is_alive, what="its thread has ended")
    store.close()
    disk.failing = False
    again = Store(disk, journal_segment_bytes=JOURNAL_BYTES)
    assert read_all(again.replica()) == [b"a", b"b"], "the journal has it"
    again.close()


def test_dropped_partitions_give_their_room_back(store: Store, folder: Path) -> None:
    for _ in range(3):
        append(store.replica(), [b"x" * 100_000])
    group = store.replica().log.folder
    store.await_flushed()
    assert sum(map(len, contents(store.disk, group).values())) > 300_000
    store.partitions.drop(TOPIC_ID, 0)
    until(lambda: not (folder / group).exists(), what="its folder is gone")
