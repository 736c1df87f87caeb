"""Offsets while a read manager's metadata is stale."""

from collections.abc import Iterator

import pytest

from myqueue.protocol.errors import NoLeader, TopicNotFound
from myqueue.spark import offset_reader
from myqueue.spark.offset_reader import OffsetReader
from myqueue.spark.offsets import OffsetBounds, StreamOffset, TopicBounds
from myqueue.spark.options import Subscription
from myqueue.transport import Transport
from tests.unit.client.scripted_server import Reply, ScriptedServer, Seen, failure


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    scripted = ScriptedServer()
    yield scripted
    scripted.close()


def offsets(topic_id: str, end: int) -> Reply:
    entry = {"partition_id": 0, "beginning_offset": 0, "end_offset": end}
    return Reply(body={"status": "success", "topic": "orders", "topic_id": topic_id, "partitions": [entry]})


def new_offset_reader(server: ScriptedServer, subscription: Subscription) -> OffsetReader:
    return OffsetReader(Transport(server.url), subscription, timeout_s=10)


def test_a_known_topic_that_is_not_listed_is_looked_up(server: ScriptedServer) -> None:
    def answer(seen: Seen) -> Reply:
        if seen.path == "/topics":
            return Reply(404, failure(404, 40405))
        return offsets("id", 7) if "/orders/" in seen.path else Reply(404, failure(404, 40401))

    server.answer = answer
    known = {"orders": "id", "bills": "other", "unwanted": "id"}
    found = new_offset_reader(server, Subscription("subscribePattern", pattern="orders|bills")).snapshot(known)
    assert found == {"orders": TopicBounds("id", {0: OffsetBounds(0, 7)})}
    assert server.calls("/v1/topics/unwanted/offsets") == []


def test_another_id_counts_when_it_lasts(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    named = new_offset_reader(server, Subscription("subscribe", ("orders",)))
    server.script(offsets("old", 50), offsets("new", 7))
    assert named.snapshot({"orders": "new"})["orders"].topic_id == "new"
    monkeypatch.setattr(offset_reader, "STALE_METADATA_S", 0.2)
    server.answer = lambda _: offsets("newest", 3)
    assert named.snapshot({"orders": "new"})["orders"] == TopicBounds("newest", {0: OffsetBounds(0, 3)})


def test_partitions_without_a_leader_are_left_out_if_they_may_be(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(seen: Seen) -> Reply:
        if seen.path == "/v1/topics/orders":
            return Reply(body={"status": "success", "topic": "orders", "topic_id": "id", "partitions": 2})
        if seen.path == "/topics/orders/partitions":
            there = {"beginning_offset": 3, "end_offset": 7}
            entries = [{"partition_id": 0, "leader": 1, **there}, {"partition_id": 1, "leader": None, **there}]
            return Reply(body={"status": "success", "partitions": entries})
        return Reply(503, failure(503, 50302))

    server.answer = answer
    monkeypatch.setattr(offset_reader, "ELECTION_S", 0.1)
    subscription = Subscription("subscribe", ("orders",))
    careless = OffsetReader(Transport(server.url), subscription, timeout_s=10, fail_on_no_leader=False)
    assert careless.snapshot() == {"orders": TopicBounds("id", {0: OffsetBounds(3, 7)}, frozenset({1}))}
    with pytest.raises(NoLeader):
        OffsetReader(Transport(server.url), subscription, timeout_s=0.1).snapshot()


def test_a_named_topic_that_does_not_exist(server: ScriptedServer) -> None:
    named = new_offset_reader(server, Subscription("subscribe", ("orders", "odrers")))
    with pytest.raises(TopicNotFound, match="option subscribe: there is no topic 'odrers'"):
        named.require({"orders": "id"})


def test_offsets_of_recreated_topics_do_not_count() -> None:
    progress = StreamOffset({"a": "1", "b": "2", "c": "3"}, {("a", 0): 5, ("b", 0): 6, ("c", 0): 7})
    snapshot = {"a": TopicBounds("1", {0: OffsetBounds(0, 9)}), "b": TopicBounds("new", {0: OffsetBounds(0, 9)})}
    assert progress.within(snapshot) == StreamOffset({"a": "1"}, {("a", 0): 5})
