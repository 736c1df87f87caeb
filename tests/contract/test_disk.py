"""What only the disk promises: everything acknowledged is there again, and a file that is not ours is refused."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest
import structlog
from broker.storage.checkpoints import Checkpoints
from broker.storage.database import APPLICATION_ID, PAGE_BYTES, Database, StorageRefused, set_meta
from broker.storage.saving import Owed, Save
from broker.storage.wal import lost_transactions

from broker.raft.configuration import MemberId
from broker.raft.effects import Persist
from broker.raft.entry import Kind, LogEntry
from broker.raft.snapshot import HardState
from broker.storage.writer import Change, Round
from tests.broker_store import TOPIC_ID, Store, append, read_all
from tests.waiting import until


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def store(folder: Path) -> Iterator[Store]:
    store = Store(folder)
    yield store
    store.close()


def test_sqlite_is_set_as_meant(store: Store) -> None:
    database = store.database
    with database.transaction() as writer, database.reading() as reader:
        for connection in (writer, reader):
            assert connection.pragma("page_size") == PAGE_BYTES
            assert connection.pragma("journal_mode") == "wal"
            assert connection.pragma("synchronous") == 2
            assert connection.pragma("application_id") == APPLICATION_ID
        assert reader.pragma("query_only") == 1
        assert reader.pragma("wal_autocheckpoint") == 0


def test_lookups_use_their_indexes(store: Store) -> None:
    with store.database.reading() as connection:
        for sql, index in (
            ("SELECT * FROM entry WHERE group_id = 1 AND entry_index = 1", "entry_by_index"),
            (
                "SELECT entry_index FROM entry INDEXED BY entry_by_offset WHERE group_id = 1 AND base_offset <= 5"
                " AND count > 0 ORDER BY base_offset DESC LIMIT 1",
                "entry_by_offset (group_id=? AND base_offset<?)",
            ),
        ):
            plan = " ".join(str(row[3]) for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}").fetchall())
            assert index in plan
            assert "TEMP B-TREE" not in plan


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
        assert again.database.incarnation == store.database.incarnation
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


def copied(folder: Path, to: Path, wal: bytes) -> Path:
    to.mkdir()
    shutil.copy(folder / "broker.db", to / "broker.db")
    (to / "broker.db-wal").write_bytes(wal)
    return to


def test_a_wal_cut_anywhere_opens_as_a_prefix(store: Store, folder: Path, tmp_path: Path) -> None:
    replica = store.replica()
    sent = [b"message %d" % number for number in range(5)]
    for number, value in enumerate(sent):
        append(replica, [value], [f"k{number}"])
    wal = (folder / "broker.db-wal").read_bytes()
    seen = set()
    for number, cut in enumerate([*range(0, len(wal), PAGE_BYTES // 3), len(wal)]):
        opened = Store(copied(folder, tmp_path / f"cut-{number}", wal[:cut]))
        try:
            replicas = opened.partitions.all()
            values = read_all(replicas[0]) if replicas else []
            assert values == sent[: len(values)]
            seen.add(len(values))
            assert not any(tmp_path.glob("cut-*/*damaged*"))
        finally:
            opened.close()
    assert seen == set(range(6)), "the cuts met every state in between"


def test_a_flip_in_the_wal_before_the_last_transaction_is_noticed(store: Store, folder: Path, tmp_path: Path) -> None:
    replica = store.replica()
    for number in range(3):
        append(replica, [b"message %d" % number])
    wal = (folder / "broker.db-wal").read_bytes()
    frame = 24 + PAGE_BYTES
    frames = (len(wal) - 32) // frame
    commits = [n for n in range(frames) if wal[32 + n * frame + 4 : 32 + n * frame + 8] != bytes(4)]
    for number in range(frames):
        flipped = bytearray(wal)
        flipped[32 + number * frame + 24 + 5000] ^= 1
        copy = copied(folder, tmp_path / f"flip-{number}", bytes(flipped))
        opened = Store(copy)
        damaged = list(copy.glob("broker.db.damaged-*"))
        opened.close()
        assert bool(damaged) == (number <= commits[-2]), f"frame {number} of {frames}"
        assert (opened.database.incarnation != store.database.incarnation) == bool(damaged)


def test_a_prepared_wal_is_used_and_opens_again(store: Store, folder: Path, tmp_path: Path) -> None:
    """Also where nothing or little was written to it before the process ended."""
    wal = folder / "broker.db-wal"
    store.database.prepare_wal(200 * PAGE_BYTES)
    size = wal.stat().st_size
    assert size == 200 * PAGE_BYTES
    for number, values in enumerate(([], [b"a"], [b"b", b"c"])):
        append(store.replica(), values or [b"0"])
        assert wal.stat().st_size == size
        opened = Store(copied(folder, tmp_path / f"copy-{number}", wal.read_bytes()))
        opened.database.prepare_wal(200 * PAGE_BYTES)
        assert read_all(opened.replica()) == read_all(store.replica())
        opened.close()
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "broker.db-wal").write_bytes(bytes(size))
    assert not lost_transactions(empty / "broker.db-wal", 0)


def test_a_flip_in_the_header_of_the_wal_is_noticed(store: Store, folder: Path, tmp_path: Path) -> None:
    append(store.replica(), [b"a"])
    wal = bytearray((folder / "broker.db-wal").read_bytes())
    wal[17] ^= 1
    opened = Store(copied(folder, tmp_path / "flip", bytes(wal)))
    opened.close()
    assert opened.database.incarnation != store.database.incarnation


def test_checkpoints_keep_the_wal_short_under_load(store: Store, folder: Path) -> None:
    checkpoints = Checkpoints(store.database, structlog.get_logger(), wal_bytes=40 * PAGE_BYTES)
    checkpoints.start()
    try:
        replica = store.replica()
        for _ in range(300):
            append(replica, [b"x" * 20_000])
    finally:
        checkpoints.stop()
    assert (folder / "broker.db-wal").stat().st_size < 300 * 20_000 / 2
    assert read_all(replica) == [b"x" * 20_000] * 300
    store.database.checkpoint()
    assert store.database.unmoved_bytes == 0


def test_an_erased_folder_comes_back_under_another_incarnation(store: Store, folder: Path) -> None:
    store.close()
    shutil.rmtree(folder)
    again = Database(folder)
    assert again.incarnation != store.database.incarnation
    assert len(again.incarnation) == 16
    again.close()


def test_two_brokers_cannot_share_a_folder(store: Store, folder: Path) -> None:
    with pytest.raises(StorageRefused, match="in use"):
        Database(folder)


@pytest.mark.parametrize(
    ("change", "reason"),
    [("PRAGMA user_version = 99", "version 99"), ("PRAGMA application_id = 1", "not made by a myqueue broker")],
)
def test_a_file_of_something_else_is_refused(store: Store, folder: Path, change: str, reason: str) -> None:
    store.close()
    connection = apsw.Connection(str(folder / "broker.db"))
    connection.execute(change)
    connection.close()
    with pytest.raises(StorageRefused, match=reason):
        Database(folder)


def test_garbage_is_put_aside(folder: Path) -> None:
    folder.mkdir()
    for _ in range(2):
        (folder / "broker.db").write_bytes(b"garbage" * 10_000)
        store = Store(folder)
        assert store.partitions.all() == []
        store.close()
        assert len(list(folder.glob("broker.db.damaged-*"))) == 1, "the last one is kept"


def test_a_bit_flip_in_the_file_is_noticed(store: Store, folder: Path) -> None:
    append(store.replica(), [b"A" * 5000])
    append(store.replica(), [b"B" * 5000])
    store.database.checkpoint()
    store.close()
    path = folder / "broker.db"
    data = bytearray(path.read_bytes())
    data[data.index(b"A" * 100) + 50] ^= 1
    path.write_bytes(data)
    again = Store(folder)
    try:
        with pytest.raises(Exception, match="damaged"):
            again.partitions.get(TOPIC_ID, 0).messages(0, 1)
    finally:
        again.close()


STATE_DAMAGE = [
    "UPDATE partition_group SET term = term + 1",
    "UPDATE partition_group SET vote = NULL",
    "UPDATE partition_group SET commit_index = commit_index + 1",
    "UPDATE partition_group SET start_crc = 1",
    "UPDATE snapshot SET record = zeroblob(length(record))",
    "DELETE FROM snapshot",
    "DELETE FROM entry WHERE entry_index = (SELECT max(entry_index) - 1 FROM entry)",
]


@pytest.mark.parametrize("damage", STATE_DAMAGE)
def test_damaged_state_comes_back_as_another_member(store: Store, folder: Path, damage: str) -> None:
    founders = [store.me, MemberId(2, 2), MemberId(3, 3)]
    store.create(0, founders)
    replica = store.partitions.get(TOPIC_ID, 0)
    entries = [LogEntry(n, 1, Kind.NOOP, 0, 0) for n in (1, 2, 3)]
    owed = Persist(replica.name, HardState(1, MemberId(2, 2), 0), None, None, tuple(entries))
    store.writer.submit(Save([Owed(replica.log, owed)])).result(10)
    store.close()
    connection = apsw.Connection(str(folder / "broker.db"))
    connection.execute(damage)
    connection.close()
    again = Store(folder)
    try:
        (made,) = again.partitions.all()
        assert made.me.incarnation != replica.me.incarnation
        assert again.database.incarnation == store.database.incarnation
        assert (made.log.tail.next_index, made.log.group.hard) == (1, HardState())
        (report,) = again.partitions.reports()
        assert (report["role"], report["incarnation"]) == ("learner", f"{made.me.incarnation:016x}")
        again.partitions.sweep()
        with again.database.reading() as reader:
            assert reader.execute("SELECT count(*) FROM entry").fetchone() == (0,)
    finally:
        again.close()


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM partition_group",
        "UPDATE partition_group SET partition_id = 1",
        "UPDATE meta SET value = '0123456789abcdef' WHERE name = 'incarnation'",
        "DELETE FROM meta WHERE name = 'broker_id'",
    ],
)
def test_a_file_that_contradicts_itself_is_put_aside(store: Store, folder: Path, damage: str) -> None:
    store.replica()
    store.writer.submit(Change(lambda round_: set_meta(round_.connection, "broker_id", "1"))).result(10)
    store.close()
    connection = apsw.Connection(str(folder / "broker.db"))
    connection.execute(damage)
    connection.close()
    again = Store(folder)
    try:
        assert again.partitions.all() == []
        assert again.database.incarnation not in (store.database.incarnation, "0123456789abcdef")
        assert list(folder.glob("broker.db.damaged-*"))
    finally:
        again.close()


def test_a_page_that_cannot_be_written_condemns_the_file(store: Store, folder: Path) -> None:
    def fail(_: Round) -> None:
        raise apsw.CorruptError

    store.writer.submit(Change(fail))
    until(lambda: store.failures, within_s=5, what="the failure is reported")
    store.close()
    again = Store(folder)
    assert again.database.incarnation != store.database.incarnation
    again.close()
    third = Store(folder)
    assert third.database.incarnation == again.database.incarnation
    third.close()
