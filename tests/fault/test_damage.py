"""Files with a flipped bit: never served wrong, and the replica is rebuilt without its group losing its majority."""

from pathlib import Path

import pytest

from tests.calls import Calls
from tests.cluster import BROKERS, Cluster
from tests.fault.damaged_replicas import (
    PAGE_BYTES,
    Writer,
    aside,
    await_rebuilt,
    await_same,
    change_stopped,
    flip,
    handed_out,
    incarnation_of,
    partition_files,
    place_of,
    replica_names,
    settle_files,
)
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

HEALED_S = 40


def flip_body(folder: Path, needle: bytes) -> None:
    path, at = place_of(partition_files(folder), needle)
    flip(path, at)


def await_none_damaged(calls: Calls, topic: str) -> None:
    def are_sound() -> bool:
        return not any(partition["damaged"] for partition in calls.partitions(topic).json()["partitions"])

    until(are_sound, within_s=15, what="no replica is listed as damaged")


@pytest.mark.parametrize("victim", ["leader", "follower"])
def test_one_bad_entry_in_one_of_two_replicas(cluster: Cluster, calls: Calls, topic_name: str, victim: str) -> None:
    """The group needs its vote until another replica has taken its place: alone the sound one is no majority."""
    assert calls.create_topic(topic_name, partitions=1, replication=2).status_code == 201
    writer = Writer(calls, topic_name, 60)
    leader, names = replica_names(calls, topic_name)
    assert leader is not None
    name = leader if victim == "leader" else next(other for other in names if other != leader)
    before = incarnation_of(cluster, name, topic_name)
    settle_files(cluster, name)
    change_stopped(cluster, name, lambda folder: flip_body(folder, writer.needle(20)))
    read = handed_out(cluster, name, topic_name)
    assert set(read) <= set(writer.written), "what is sound is served on, and nothing else"
    seen = await_rebuilt(cluster, name, topic_name, before, writer, within_s=HEALED_S)
    assert seen, "the old files were kept until the new replica had joined"
    until(lambda: not aside(cluster, name), within_s=15, what="what was set aside is removed")
    await_same(cluster, topic_name, names, writer.written)
    await_none_damaged(calls, topic_name)


def test_a_second_damaged_replica_while_the_first_is_rebuilt(cluster: Cluster, calls: Calls, topic_name: str) -> None:
    assert calls.create_topic(topic_name, partitions=1, replication=3).status_code == 201
    writer = Writer(calls, topic_name, 60)
    leader, names = replica_names(calls, topic_name)
    first, second = (name for name in names if name != leader)
    before = {name: incarnation_of(cluster, name, topic_name) for name in (first, second)}
    for name in (first, second):
        settle_files(cluster, name)
    change_stopped(cluster, first, lambda folder: flip_body(folder, writer.needle(10)))
    until(lambda: aside(cluster, first), within_s=HEALED_S, what=f"{first} is being rebuilt", pause_s=0.01)
    cluster.pause(first)  # two voters are left; the second one is needed, damaged as it is
    change_stopped(cluster, second, lambda folder: flip_body(folder, writer.needle(30)))
    assert set(handed_out(cluster, second, topic_name)) <= set(writer.written)
    for _ in range(10):
        writer.write()
    assert incarnation_of(cluster, second, topic_name) == before[second]
    cluster.resume(first)
    for name in (first, second):
        await_rebuilt(cluster, name, topic_name, before[name], writer, within_s=HEALED_S)
    await_same(cluster, topic_name, names, writer.written)
    await_none_damaged(calls, topic_name)
    for name in (first, second):
        until(lambda name=name: not aside(cluster, name), within_s=15, what="nothing is left aside")  # type: ignore[misc]


def flip_journal_frame(folder: Path, needle: bytes) -> None:
    """The header of the frame with these bytes, which begins with a page."""
    path, at = place_of(sorted(folder.glob("journal-*")), needle)
    flip(path, at // PAGE_BYTES * PAGE_BYTES + 12)


def flip_journal_body(folder: Path, needle: bytes) -> None:
    path, at = place_of(sorted(folder.glob("journal-*")), needle)
    flip(path, at)


def flip_index(folder: Path, needle: bytes) -> None:
    path, _ = place_of(partition_files(folder), needle)
    index = path.with_suffix(".idx")
    flip(index, index.stat().st_size // 2)


KINDS = {
    "journal frame": flip_journal_frame,
    "journal body": flip_journal_body,
    "partition file": flip_body,
    "index": flip_index,
}
FROM_JOURNAL = ("journal frame", "journal body")


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_in_each_kind_of_file(cluster: Cluster, calls: Calls, topic_name: str, kind: str) -> None:
    name = BROKERS[2]
    assert calls.create_topic(topic_name, partitions=1, replication=3).status_code == 201
    writer = Writer(calls, topic_name, 60)
    if kind not in FROM_JOURNAL:
        settle_files(cluster, name)
    before = incarnation_of(cluster, name, topic_name)
    change_stopped(cluster, name, lambda folder: KINDS[kind](folder, writer.needle(20)))
    assert set(handed_out(cluster, name, topic_name)) <= set(writer.written)
    if kind != "index":  # what is derived from the file beside it is made anew
        await_rebuilt(cluster, name, topic_name, before, writer, within_s=HEALED_S)
    await_same(cluster, topic_name, list(BROKERS), writer.written)
    await_none_damaged(calls, topic_name)


def test_a_flipped_bit_in_a_snapshot(cluster: Cluster, calls: Calls, topic_name: str) -> None:
    """The table of keys: a key that it has forgotten would be written twice."""
    name = BROKERS[2]
    assert calls.create_topic(topic_name, partitions=1, replication=3, retention_bytes=100_000).status_code == 201
    producer = calls.producer(topic_name)
    key = {"Idempotency-Key": "only once"}
    assert calls.produce(topic_name, producer, "first", key).json()["offset"] == 0
    for _ in range(30):
        calls.sent(topic_name, producer, "x" * 10_000)

    def snapshots() -> list[Path]:
        return [path for path in partition_files(cluster.data_folder(name), "") if path.name.startswith("snapshot-")]

    until(snapshots, within_s=20, what="a snapshot is stored")
    before = incarnation_of(cluster, name, topic_name)

    def flip_all(_: Path) -> None:
        for path in snapshots():
            flip(path, path.stat().st_size // 2)

    change_stopped(cluster, name, flip_all)

    def is_rebuilt() -> bool:
        replica = cluster.replica(name, topic_name)
        return replica is not None and replica.incarnation != before and replica.is_voter and not replica.is_changing

    until(is_rebuilt, within_s=HEALED_S, what="it was rebuilt and votes")
    await_none_damaged(calls, topic_name)
    cluster.stop(BROKERS[0])
    until(
        lambda: calls.produce(topic_name, producer, "first", key).json().get("offset") == 0,
        within_s=20,
        what="the key is known whoever leads",
    )
