"""Commits of micro-batches that are killed, repeated and doubled: nothing twice, nothing lost. Without Spark: what its
tasks and its driver call is called here."""

import multiprocessing
import random
import signal
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa
import pytest
import requests

from myqueue import Admin, IdempotencyConflict, InvalidRequest, OffsetOutOfRange, ProducerFenced, TopicNotFound
from myqueue.http_connection import HttpConnection
from myqueue.protocol.batch import Header
from myqueue.protocol.partitioner import partition_for
from myqueue.spark import publisher, sink
from myqueue.spark.manifest import MicroBatch, StagedBatch
from myqueue.spark.options import MAX_INLINE_BYTES, WriteOptions, stream_write_options
from myqueue.spark.publisher import ManifestStore, publish
from myqueue.spark.staging import open_staging
from myqueue.spark.target_topics import TargetTopics
from myqueue.spark.topic_log import TopicLog
from myqueue.transport import Transport
from tests.cluster import Cluster
from tests.spark.stored import stored
from tests.spark.tollgate import Tollgate
from tests.waiting import until

pytestmark = pytest.mark.timeout(300)  # the first test waits for the stack

TASKS, ROWS = 2, 60

_mortals = multiprocessing.get_context("forkserver")  # a fork of a process without threads, for each that is killed
_mortals.set_forkserver_preload(["myqueue.spark.publisher"])


class Query(NamedTuple):
    options: WriteOptions
    id: str

    def rows(self, number: int, task: int) -> list[bytes]:
        return [f"{self.id} {number} {task} {row}".encode() for row in range(ROWS)]

    def all_rows(self, *numbers: int, tasks: int = TASKS) -> Counter[bytes]:
        return Counter(row for number in numbers for task in range(tasks) for row in self.rows(number, task))

    def stage(self, number: int, *, order: int, batch_bytes: int = 800, tasks: int = TASKS) -> list[StagedBatch]:
        """What the tasks of an attempt do: each attempt may have its rows in another order, and cut them elsewhere."""
        options = replace(self.options, batch_bytes=batch_bytes)
        entries = []
        for task in range(tasks):
            values = self.rows(number, task)
            random.Random(order).shuffle(values)
            keys = [value[-1:] for value in values]
            frame = pa.record_batch({"value": values, "key": keys})
            parts = iter([frame.slice(0, 20), frame.slice(20)])
            entries += sink.stage(options, parts, MicroBatch(self.id, 0), task).batches
        return entries

    def stored(self) -> Counter[bytes]:
        assert self.options.topic is not None
        found = [one for one in stored(self.options.url, self.options.topic) if one.value.startswith(self.id.encode())]
        assert all(one.partition == partition_for(one.value[-1:], 3) for one in found)
        return Counter(one.value for one in found)


@pytest.fixture(scope="module")
def topic(stack: Cluster) -> str:
    name = f"t-{uuid.uuid4().hex[:12]}"
    with Admin(stack.url) as admin:
        admin.create_topic(name, partitions=3)
    return name


class Expiring(NamedTuple):
    done: Query
    begun: Query
    staged: Query
    entries: list[StagedBatch]


@pytest.fixture(scope="module", autouse=True)
def expiring(stack: Cluster) -> Expiring:
    """Micro-batch 7 of three queries, the way it was when they stopped. It expires while the other tests run."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    options = stream_write_options({"url": stack.url, "topic": name})
    options = replace(options, staging_retention_ms=10_000, staging_retention_given=True, max_inline_bytes=0)
    done, begun, staged = (Query(options, str(uuid.uuid4())) for _ in range(3))
    with Admin(stack.url) as admin:
        admin.create_topic(name, partitions=3)
    publish(options, MicroBatch(done.id, 7), done.stage(7, order=0))
    decided(begun, 7, begun.stage(7, order=0))
    return Expiring(done, begun, staged, staged.stage(7, order=0))


def decided(query: Query, number: int, entries: list[StagedBatch]) -> None:
    """A driver that died when it had stored its manifest."""
    transport, connection = Transport(query.options.url), HttpConnection(query.options.url)
    ManifestStore(transport, open_staging(transport, query.options), MicroBatch(query.id, number), connection).decide(
        entries
    )
    transport.close()
    connection.close()


@pytest.fixture(params=["in the staging topic", "in the manifest"])
def query(stack: Cluster, topic: str, request: pytest.FixtureRequest) -> Query:
    options = stream_write_options({"url": stack.url, "topic": topic})
    if request.param == "in the staging topic":
        options = replace(options, max_inline_bytes=0)
    return Query(options, str(uuid.uuid4()))


@pytest.mark.parametrize(
    ("point", "answered"),
    [
        pytest.param("manifest", False, marks=pytest.mark.slow),  # nothing is there
        ("manifest", True),
        pytest.param("middle", False, marks=pytest.mark.slow),  # as the next, one batch earlier
        ("middle", True),
        pytest.param("last", False, marks=pytest.mark.slow),
        pytest.param("last", True, marks=pytest.mark.slow),  # as the next
        ("done", False),
        ("done", True),
    ],
)
def test_a_killed_commit_is_completed_by_its_repetition(
    stack: Cluster, query: Query, point: str, answered: bool
) -> None:
    """`answered`: the append at which it is killed is stored, but the answer has not arrived."""
    first = query.stage(1, order=1)
    assert len(first) > 6
    at = {"manifest": 1, "middle": 1 + len(first) // 2, "last": 1 + len(first), "done": 2 + len(first)}[point]
    with Tollgate(stack.url, lambda: process.kill(), at, answered=answered) as gate:
        options = replace(query.options, url=gate.url)
        process = _mortals.Process(target=publish, args=(options, MicroBatch(query.id, 1), first))
        process.start()
        process.join(60)
        assert process.exitcode == -signal.SIGKILL
        process.close()
    # The repetition is staged in the other way.
    other = replace(query.options, max_inline_bytes=MAX_INLINE_BYTES - query.options.max_inline_bytes)
    second = query._replace(options=other).stage(1, order=2, batch_bytes=700)
    assert all(bool(one.data) != bool(two.data) for one, two in zip(first, second, strict=False))
    publish(query.options, MicroBatch(query.id, 1), second)
    assert query.stored() == query.all_rows(1)
    publish(query.options, MicroBatch(query.id, 1), second)  # Spark did not know
    assert query.stored() == query.all_rows(1)


def test_a_micro_batch_before_the_last_is_refused(query: Query) -> None:
    """From a driver that was cut off for a while, or from a checkpoint that was put back: Spark repeats only the last.
    What it has may be new rows, so it must not be taken as published."""
    for number in range(3):
        publish(query.options, MicroBatch(query.id, number), query.stage(number, order=number))
    for number in range(2):
        with pytest.raises(
            ProducerFenced, match=rf"micro-batch {number} of query {query.id} .* new checkpointLocation"
        ):
            publish(query.options, MicroBatch(query.id, number), query.stage(number, order=3))
    publish(query.options, MicroBatch(query.id, 2), query.stage(2, order=3))
    publish(query.options, MicroBatch(query.id, 3), query.stage(3, order=3))
    assert query.stored() == query.all_rows(0, 1, 2, 3)


def test_two_drivers_at_once_publish_one_attempt(query: Query) -> None:
    attempts = [query.stage(70_000, order=order, batch_bytes=400 + 100 * order) for order in range(3)]
    with ThreadPoolExecutor(3) as drivers:
        list(drivers.map(lambda entries: publish(query.options, MicroBatch(query.id, 70_000), entries), attempts))
    assert query.stored() == query.all_rows(70_000)


def test_a_killed_leader_is_followed(stack: Cluster, query: Query, topic: str) -> None:
    entries = query.stage(0, order=0)
    leader = stack.await_leader(topic, 0, within_s=10)
    died = stack.kill(leader)
    publish(query.options, MicroBatch(query.id, 0), entries)
    assert query.stored() == query.all_rows(0)
    stack.await_restart(leader, died, within_s=30)
    stack.await_healthy(within_s=30)


def test_nothing_to_publish_is_published_once_too(query: Query) -> None:
    publish(query.options, MicroBatch(query.id, 0), [])
    publish(query.options, MicroBatch(query.id, 0), query.stage(0, order=0))
    assert not query.stored()


@pytest.mark.parametrize("by_driver", [False, True])
def test_what_is_staged_is_fetched_once(
    stack: Cluster, topic_name: str, monkeypatch: pytest.MonkeyPatch, by_driver: bool
) -> None:
    """By more tasks than partitions, each of which needs something of every task. The driver stages what the tasks have
    left to the manifest if it is too much for it."""
    fetched: list[tuple[int, int]] = []
    fetch = TopicLog.fetch

    def counting(
        log: TopicLog, connection: HttpConnection, partition: int, offset: int
    ) -> list[tuple[Header, memoryview]]:
        fetched.append((partition, offset))
        return fetch(log, connection, partition, offset)

    with Admin(stack.url) as admin:
        admin.create_topic(topic_name, partitions=3)
    query = Query(stream_write_options({"url": stack.url, "topic": topic_name}), str(uuid.uuid4()))
    query = query if by_driver else query._replace(options=replace(query.options, max_inline_bytes=0))
    entries = query.stage(0, order=0, tasks=24)
    assert all(bool(entry.data) == by_driver for entry in entries)
    monkeypatch.setattr("myqueue.spark.publisher._MAX_INLINE_IN_MANIFEST", 10_000)
    monkeypatch.setattr(TopicLog, "fetch", counting)
    publish(query.options, MicroBatch(query.id, 0), entries)
    # All of it fits into an answer. The driver has one batch for all tasks.
    assert sorted(partition for partition, _ in fetched) == ([1] if by_driver else [1, 2, 3])
    assert query.stored() == query.all_rows(0, tasks=24)


def test_what_the_manifest_holds_is_stored_with_it(
    stack: Cluster, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else is written to the staging topic, and nothing is fetched from it."""
    query = Query(stream_write_options({"url": stack.url, "topic": topic_name}), str(uuid.uuid4()))
    with Admin(stack.url) as admin:
        admin.create_topic(topic_name, partitions=3)
        entries = query.stage(0, order=0)
        monkeypatch.setattr(TopicLog, "fetch", lambda *_: pytest.fail("something was fetched"))
        publish(query.options, MicroBatch(query.id, 0), entries)
        ends = {number: one.end_offset for number, one in admin.offsets(query.options.staging_topic).items()}
    assert ends.pop(0) > 0
    assert set(ends.values()) == {0}
    assert query.stored() == query.all_rows(0)


def test_topics_that_are_deleted_meanwhile(stack: Cluster, topic_name: str) -> None:
    options = replace(stream_write_options({"url": stack.url, "topic": topic_name}), max_inline_bytes=0)
    query = Query(options, str(uuid.uuid4()))
    other = query._replace(id=str(uuid.uuid4()))
    with Admin(stack.url) as admin:
        admin.create_topic(topic_name, partitions=3)
        publish(query.options, MicroBatch(query.id, 0), query.stage(0, order=0))
        early = query.stage(1, order=0)
        delete(stack, query.options.staging_topic)  # so that the decision is lost
        with pytest.raises(IdempotencyConflict, match=r"micro-batch 0 of query .* holds other messages"):
            publish(query.options, MicroBatch(query.id, 0), query.stage(0, order=1))
        assert query.stored() == query.all_rows(0)
        with pytest.raises(TopicNotFound, match=r"staging topic .* deleted meanwhile; .* start the query again"):
            publish(query.options, MicroBatch(query.id, 1), early)
        publish(query.options, MicroBatch(query.id, 1), query.stage(1, order=1))
        assert query.stored() == query.all_rows(0, 1)

        decided(query, 2, query.stage(2, order=0))
        early = other.stage(0, order=0)
        delete(stack, topic_name)
        with pytest.raises(TopicNotFound, match=r"deleted since the query began; .* start the query again"):
            publish(query.options, MicroBatch(other.id, 0), early)
        admin.create_topic(topic_name, partitions=3)
        publish(query.options, MicroBatch(other.id, 0), other.stage(0, order=1))
        with pytest.raises(TopicNotFound, match=r"deleted since the query began; it cannot be completed"):
            publish(query.options, MicroBatch(query.id, 2), query.stage(2, order=0))
        assert other.stored() == other.all_rows(0)
        assert not query.stored()


def test_a_deleted_topic_that_a_read_manager_still_lists(
    stack: Cluster, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is decided and nothing is created: the micro-batch is published when the topic is there again."""
    query = Query(stream_write_options({"url": stack.url, "topic": topic_name}), str(uuid.uuid4()))

    def assert_refused() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(publisher, "open_current", lambda *_: stale)
            patched.setattr(TargetTopics, "open", lambda *_: stale)
            with pytest.raises(TopicNotFound, match=r"deleted since the query began; .* create it to go on"):
                publish(query.options, MicroBatch(query.id, 1), early)
            with pytest.raises(TopicNotFound):
                sink.append(query.options, iter([pa.record_batch({"value": [b"x"]})]), 0)

    with Admin(stack.url) as admin, closing(Transport(stack.url)) as transport:
        admin.create_topic(topic_name, partitions=3)
        early, stale = query.stage(1, order=0), TopicLog(transport, topic_name)
        delete(stack, topic_name)
        assert_refused()
        assert topic_name not in admin.list_topics()
        admin.create_topic(topic_name, partitions=3)
        assert_refused()
    publish(query.options, MicroBatch(query.id, 1), query.stage(1, order=1))
    assert query.stored() == query.all_rows(1)


def delete(stack: Cluster, topic: str) -> None:
    with Admin(stack.url) as admin:
        admin.delete_topic(topic)
    # Read managers know it for a little longer, each for itself.
    until(
        lambda: {requests.get(f"{stack.url}/v1/routing/{topic}", timeout=10).status_code for _ in range(6)} == {404},
        within_s=10,
        what="the topic is gone",
    )


def test_what_has_expired(stack: Cluster, expiring: Expiring) -> None:
    done, begun, staged, entries = expiring
    options = done.options

    def is_gone() -> bool:
        found = admin.partitions(options.staging_topic)
        return all(one.beginning_offset == one.end_offset for one in found) and found[0].end_offset > 0

    with Admin(stack.url) as admin:
        until(is_gone, within_s=60, what="retention has cut what was staged")
    publish(options, MicroBatch(done.id, 7), done.stage(7, order=1))
    assert done.stored() == done.all_rows(7)
    with pytest.raises(OffsetOutOfRange, match=rf"micro-batch 7 of query {begun.id} .* new checkpointLocation"):
        publish(options, MicroBatch(begun.id, 7), begun.stage(7, order=1))
    assert not begun.stored()
    with pytest.raises(OffsetOutOfRange, match=rf"micro-batch 7 of query {staged.id}.* start the query again"):
        publish(options, MicroBatch(staged.id, 7), entries)
    publish(options, MicroBatch(staged.id, 7), staged.stage(7, order=1))
    assert staged.stored() == staged.all_rows(7)
    with pytest.raises(InvalidRequest, match=r"stagingRetentionMs is 5, but '_staged.* is there with 10000"):
        publish(replace(options, staging_retention_ms=5), MicroBatch(done.id, 8), [])
