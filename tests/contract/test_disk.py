"""What only the disk promises: everything acknowledged is there again, and a file that is not ours is refused."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest
import structlog

from broker.storage.checkpoints import Checkpoints
from broker.storage.database import APPLICATION_ID, PAGE_BYTES, Database, StorageRefused
from tests.broker_store import TOPIC_ID, Store, append, read_all


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


def test_a_wal_cut_anywhere_opens_as_a_prefix(store: Store, folder: Path, tmp_path: Path) -> None:
    replica = store.replica()
    sent = [b"message %d" % number for number in range(8)]
    for number, value in enumerate(sent):
        append(replica, [value], [f"k{number}"])
    wal = (folder / "broker.db-wal").read_bytes()
    seen = set()
    for number, cut in enumerate([*range(0, len(wal), PAGE_BYTES // 3), len(wal)]):
        copy = tmp_path / f"cut-{number}"
        copy.mkdir()
        shutil.copy(folder / "broker.db", copy / "broker.db")
        (copy / "broker.db-wal").write_bytes(wal[:cut])
        opened = Store(copy, started=False)
        try:
            replicas = opened.partitions.all()
            values = read_all(replicas[0]) if replicas else []
            assert values == sent[: len(values)]
            seen.add(len(values))
        finally:
            opened.close()
        shutil.rmtree(copy)
    assert seen == set(range(9)), "the cuts met every state in between"


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


def test_garbage_is_refused(folder: Path) -> None:
    folder.mkdir()
    (folder / "broker.db").write_bytes(b"garbage" * 10_000)
    with pytest.raises(StorageRefused, match="not a readable SQLite file"):
        Database(folder)


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
            again.partitions.get(TOPIC_ID, 0).fetch(0, 1)
    finally:
        again.close()
