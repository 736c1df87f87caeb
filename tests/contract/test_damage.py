"""What is stored is not what was written: it is found, never served, reported, and nothing is deleted for it."""

from collections.abc import Callable

import pytest

from broker.raft.configuration import MemberId
from broker.storage.disk import Disk
from myqueue.protocol.errors import RegistrationConflict, Unavailable
from myqueue.protocol.internal import PartitionReport
from tests.broker_store import (
    TOPIC_ID,
    Store,
    append,
    contents,
    flip_byte,
    flip_frame,
    flip_journal,
    flip_record,
    flip_stored,
    opened,
    read_all,
)
from tests.waiting import until

MakeStore = Callable[..., Store]
VALUES = [letter * 50 for letter in (b"a", b"b", b"c", b"d")]
SECOND_MESSAGE = 2  # records before it: the first entry of the term, and the first message
GIB = 1 << 30


def folder_of(store: Store, partition_id: int = 0) -> str:
    return store.partitions.get(TOPIC_ID, partition_id).log.folder


def value_at(store: Store, offset: int) -> bytes:
    (value,) = opened(store.partitions.get(TOPIC_ID, 0).messages(offset, 1) or b"")[1]
    return value


def report(store: Store, partition_id: int = 0) -> PartitionReport:
    return next(found for found in store.partitions.reports() if found["partition_id"] == partition_id)


def filled(store: Store) -> None:
    """Four messages that are in the partition's file and no longer in the journal."""
    replica, other = store.replica(0), store.replica(1)
    for value in VALUES:
        append(replica, [value])
    append(other, [b"fine"])
    store.reload()
    store.await_flushed()


def test_of_a_bad_body_only_its_entry_is_refused(store: Store) -> None:
    filled(store)
    name = flip_stored(store.disk, folder_of(store), b"bbbb", at=2)
    before = store.disk.names(folder_of(store))
    for _ in range(2):
        for offset in (0, 2, 3):
            assert value_at(store, offset) == VALUES[offset]
        replica = store.partitions.get(TOPIC_ID, 0)
        assert [entry.base_offset for entry in replica.stored_batches(0, GIB)] == [0]
        assert [entry.base_offset for entry in replica.stored_batches(2, GIB)][:2] == [2, 3]
        with pytest.raises(Unavailable, match="damaged") as refused:
            replica.messages(1, 1)
        assert refused.value.http_status == 503
        with pytest.raises(Unavailable, match="damaged"):
            replica.stored_batches(1, GIB)
        found = report(store)
        assert found["damaged"] is not None
        assert "entry 3" in found["damaged"]
        assert (found["role"], report(store, 1)["damaged"]) == ("leader", None)
        assert read_all(store.partitions.get(TOPIC_ID, 1)) == [b"fine"]
        append(replica, [b"more"])
        store.reload()
        assert report(store)["damaged"] == found["damaged"], "also before it is read again"
    assert set(before) <= set(store.disk.names(folder_of(store)))
    assert b"aaaa" in contents(store.disk, folder_of(store))[name.rpartition("/")[2]]
    assert store.store.kept_aside() == []


def test_damage_is_known_after_a_restart(store: Store) -> None:
    append(store.replica(), [b"a"])
    store.replica().found_damage("a test")
    for _ in range(2):
        store.reload()
        assert (report(store)["damaged"], report(store)["role"]) == ("a test", "leader")


def test_the_scrubber_finds_what_nobody_reads(make_store: MakeStore) -> None:
    store = make_store(scrub_interval_s=1e-6)
    filled(store)
    flip_stored(store.disk, folder_of(store), b"cccc")
    until(lambda: report(store)["damaged"], what="the scrubber reads it")
    assert report(store, 1)["damaged"] is None


def test_a_copy_in_the_journal_replaces_a_bad_one(store: Store) -> None:
    append(store.replica(), [VALUES[0]])
    store.await_flushed()
    folder = folder_of(store)
    store.reload(lambda: flip_stored(store.disk, folder, b"aaaa"))
    assert value_at(store, 0) == VALUES[0]
    assert report(store)["damaged"] is None


def of_header(disk: Disk, folder: str) -> None:
    flip_record(disk, folder, SECOND_MESSAGE, at=20)


def cut_short(disk: Disk, folder: str) -> None:
    """In the middle of the last message."""
    (name,) = (name for name in disk.names(folder) if name.endswith(".log"))
    file = disk.open(f"{folder}/{name}")
    file.truncate(contents(disk, folder)[name].index(b"dddd"))
    file.close()


def removed(disk: Disk, folder: str) -> None:
    for name in disk.names(folder):
        if name.endswith(".log"):
            disk.remove(f"{folder}/{name}")


def of_file_header(disk: Disk, folder: str) -> None:
    flip_stored(disk, folder, b"PART")


@pytest.mark.parametrize(("damage", "sound"), [(of_header, 1), (cut_short, 3), (removed, 0), (of_file_header, 0)])
def test_a_log_that_is_not_what_it_was_makes_the_replica_suspect(
    store: Store, damage: Callable[[Disk, str], None], sound: int
) -> None:
    filled(store)
    incarnation = store.store.incarnation
    folder = folder_of(store)
    store.reload(lambda: damage(store.disk, folder))
    left = contents(store.disk, folder)
    for _ in range(3):
        assert (report(store)["role"], report(store)["damaged"] is None) == ("learner", False)
        replica = store.partitions.get(TOPIC_ID, 0)
        assert replica.name not in store.driver.statuses(), "it does not vote"
        assert read_all(replica) == VALUES[:sound]
        assert {name: data for name, data in contents(store.disk, folder).items() if name in left} == left
        assert (report(store, 1)["role"], report(store, 1)["damaged"]) == ("leader", None)
        store.reload()
    assert store.store.incarnation == incarnation
    assert append(store.replica(1), [b"more"])["results"] == [{"offset": 1}]


def test_damage_that_is_read_is_never_served(store: Store) -> None:
    filled(store)
    of_header(store.disk, folder_of(store))
    replica = store.partitions.get(TOPIC_ID, 0)
    assert value_at(store, 0) == VALUES[0]
    for offset in (1, 2):
        with pytest.raises(Unavailable, match="damaged"):
            replica.messages(offset, 1)


def test_a_damaged_journal_makes_every_replica_suspect(store: Store) -> None:
    filled(store)
    before = store.store.incarnation, store.me
    for value in (b"eeee", b"ffff", b"gggg"):
        append(store.replica(), [value])
    append(store.replica(1), [b"hhhh"])
    store.await_flushed()
    folders = [folder_of(store, partition_id) for partition_id in (0, 1)]
    left = [contents(store.disk, folder) for folder in folders]
    store.reload(lambda: flip_frame(store.disk, b"ffff"))
    incarnation = store.store.incarnation
    assert incarnation != before[0]
    for _ in range(2):
        assert store.store.incarnation == incarnation
        for partition_id, committed in ((0, VALUES), (1, [b"fine"])):
            found = report(store, partition_id)
            assert (found["role"], found["incarnation"]) == ("learner", f"{before[1].incarnation:016x}")
            assert "journal" in (found["damaged"] or "")
            replica = store.partitions.get(TOPIC_ID, partition_id)
            assert replica.name not in store.driver.statuses()
            assert read_all(replica)[: len(committed)] == committed
            kept = contents(store.disk, folders[partition_id])
            assert all(kept[name].startswith(data) for name, data in left[partition_id].items() if name[-3:] == "log")
        store.reload()
    store.create(2)
    assert store.replica(2).me.incarnation == int(incarnation, 16)


def test_a_bad_body_in_the_journal_concerns_its_partition_and_spares_the_files(store: Store) -> None:
    incarnation = store.store.incarnation
    for value in VALUES:
        append(store.replica(), [value])
    append(store.replica(1), [b"fine"])
    store.await_flushed()
    left = contents(store.disk, folder_of(store))
    store.reload(lambda: flip_journal(store.disk, b"bbbb"))
    assert report(store)["damaged"] is not None
    assert report(store, 1)["damaged"] is None
    assert store.store.incarnation == incarnation
    kept = contents(store.disk, folder_of(store))
    assert all(kept[name].startswith(data) for name, data in left.items() if name.endswith(".log"))


def test_without_its_journal_nothing_is_deleted(store: Store) -> None:
    filled(store)
    incarnation = store.store.incarnation
    store.await_flushed()
    left = [contents(store.disk, f"partitions/{name}") for name in store.disk.names("partitions")]

    def remove_journal() -> None:
        for name in store.disk.names():
            if name.startswith("journal-"):
                store.disk.remove(name)

    store.reload(remove_journal)
    assert store.partitions.all() == []
    assert store.store.incarnation != incarnation
    for _ in range(2):
        aside = store.store.kept_aside()
        assert sorted(map(str, (contents(store.disk, f"aside/{name}") for name in aside))) == sorted(map(str, left))
        store.partitions.remove_aside()
        store.reload()


@pytest.mark.parametrize("lost", [False, True])
def test_a_bad_dedupe_table_makes_the_replica_suspect(store: Store, lost: bool) -> None:
    for value in VALUES:
        append(store.replica(), [value], [value.decode()[:5]])
    store.driver.write_snapshots(max_replay=0)
    folder = folder_of(store)
    log = store.replica().log
    until(lambda: log.group.snapshot.file, what="the table is written and named by its record")
    store.reload()
    assert append(store.replica(), [VALUES[1]], ["bbbbb"])["results"] == [{"offset": 1, "duplicate": True}]
    (table,) = (name for name in store.disk.names(folder) if name.startswith("snapshot-"))

    def damage() -> None:
        if lost:
            store.disk.remove(f"{folder}/{table}")
        else:
            flip_byte(store.disk, f"{folder}/{table}", 20)

    store.reload(damage)
    for _ in range(2):
        found = report(store)
        assert (found["role"], "dedupe" in (found["damaged"] or "")) == ("learner", True)
        assert store.replica().name not in store.driver.statuses()
        assert read_all(store.replica()) == VALUES
        assert lost or table in store.disk.names(folder)
        store.reload()


# Rebuilding


def test_only_a_damaged_replica_is_made_again(store: Store) -> None:
    append(store.replica(), [b"a"])
    with pytest.raises(RegistrationConflict):
        store.partitions.rebuild(TOPIC_ID, 0, store.me.incarnation)
    store.replica().found_damage("a test")
    with pytest.raises(RegistrationConflict):
        store.partitions.rebuild(TOPIC_ID, 0, store.me.incarnation + 1)
    assert read_all(store.replica()) == [b"a"]
    assert store.store.kept_aside() == []


def test_a_rebuilt_replica_is_an_empty_learner_and_its_old_files_are_aside(store: Store) -> None:
    filled(store)
    old = store.replica()
    flip_stored(store.disk, folder_of(store), b"bbbb")
    with pytest.raises(Unavailable):
        old.messages(1, 1)
    left = contents(store.disk, old.log.folder)
    store.partitions.rebuild(TOPIC_ID, 0, old.me.incarnation)
    again = store.partitions.get(TOPIC_ID, 0)
    assert again.me.incarnation != old.me.incarnation
    aside = until(store.store.kept_aside, what="the files are set aside")
    assert aside == [f"{TOPIC_ID}-0-{old.me.incarnation:016x}"]
    for _ in range(2):
        again = store.partitions.get(TOPIC_ID, 0)
        found = report(store)
        assert (found["role"], found["damaged"], found["end_offset"]) == ("learner", None, 0)
        assert found["incarnation"] == f"{again.me.incarnation:016x}"
        assert again.messages(0, 1) is None
        store.partitions.remove_aside()
        assert contents(store.disk, f"aside/{aside[0]}") == left, "its group has not taken in the new one"
        store.reload()
    store.create(initial_voters=[store.partitions.get(TOPIC_ID, 0).me])
    store.await_leads()
    store.partitions.remove_aside()
    assert store.store.kept_aside() == []
    assert append(store.replica(), [b"new"])["results"] == [{"offset": 0}]
    assert read_all(store.partitions.get(TOPIC_ID, 1)) == [b"fine"]


def test_a_deleted_topic_leaves_nothing_aside(store: Store) -> None:
    filled(store)
    replica = store.replica()
    replica.found_damage("a test")
    store.partitions.rebuild(TOPIC_ID, 0, replica.me.incarnation)
    until(store.store.kept_aside, what="the files are set aside")
    store.partitions.drop(TOPIC_ID, 0)
    until(lambda: not store.store.kept_aside(), what="they are removed")


def test_damage_of_a_learner_in_a_larger_group_is_reported_and_rebuilt(store: Store) -> None:
    store.create(initial_voters=[store.me, MemberId(2, 2), MemberId(3, 3)])
    replica = store.partitions.get(TOPIC_ID, 0)
    replica.found_damage("a test")
    assert report(store)["damaged"] == "a test"
    store.partitions.rebuild(TOPIC_ID, 0, replica.me.incarnation)
    again = store.partitions.get(TOPIC_ID, 0)
    assert (report(store)["role"], report(store)["damaged"]) == ("learner", None)
    with pytest.raises(RegistrationConflict):
        store.partitions.rebuild(TOPIC_ID, 0, replica.me.incarnation)
    assert store.partitions.get(TOPIC_ID, 0) is again
