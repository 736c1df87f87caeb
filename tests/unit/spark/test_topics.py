"""What is believed of topics when a read manager is a little behind."""

from collections.abc import Iterator

import pytest

from myqueue.protocol.errors import TopicNotFound
from myqueue.spark import topics
from myqueue.spark.offsets import Bounds, Progress, TopicBounds
from myqueue.spark.options import Subscription
from myqueue.spark.topics import Topics
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


def new_topics(server: ScriptedServer, subscription: Subscription) -> Topics:
    return Topics(Transport(server.url), subscription, timeout_s=10)


def test_a_known_topic_that_is_not_listed_is_asked_for(server: ScriptedServer) -> None:
    def answer(seen: Seen) -> Reply:
        if seen.path == "/topics":
            return Reply(404, failure(404, 40405))
        return offsets("id", 7) if "/orders/" in seen.path else Reply(404, failure(404, 40401))

    server.answer = answer
    known = {"orders": "id", "bills": "other", "unwanted": "id"}
    found = new_topics(server, Subscription("subscribePattern", pattern="orders|bills")).survey(known)
    assert found == {"orders": TopicBounds("id", {0: Bounds(0, 7)})}
    assert server.calls("/v1/topics/unwanted/offsets") == []


def test_another_id_is_believed_when_it_lasts(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    named = new_topics(server, Subscription("subscribe", ("orders",)))
    server.script(offsets("old", 50), offsets("new", 7))
    assert named.survey({"orders": "new"})["orders"].topic_id == "new"
    monkeypatch.setattr(topics, "DOUBT_S", 0.2)
    server.answer = lambda _: offsets("newest", 3)
    assert named.survey({"orders": "new"})["orders"] == TopicBounds("newest", {0: Bounds(0, 3)})


def test_a_named_topic_that_nobody_knows(server: ScriptedServer) -> None:
    named = new_topics(server, Subscription("subscribe", ("orders", "odrers")))
    with pytest.raises(TopicNotFound, match="option subscribe: there is no topic 'odrers'"):
        named.require({"orders": "id"})


def test_progress_of_topics_that_are_others_by_now_does_not_count() -> None:
    progress = Progress({"a": "1", "b": "2", "c": "3"}, {("a", 0): 5, ("b", 0): 6, ("c", 0): 7})
    survey = {"a": TopicBounds("1", {0: Bounds(0, 9)}), "b": TopicBounds("new", {0: Bounds(0, 9)})}
    assert progress.within(survey) == Progress({"a": "1"}, {("a", 0): 5})
