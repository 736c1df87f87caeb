"""Admin and the classes with the earlier names."""

import pytest

from myqueue import (
    Admin,
    ApiHandler,
    ConsumerInfo,
    ConsumerNotFound,
    InvalidRequest,
    MyConsumer,
    MyProducer,
    PartitionInfo,
    ProducerRecord,
    Properties,
    RetryPolicy,
    TopicExists,
    TopicNotFound,
    Unavailable,
)
from tests.unit.client.memory_cluster import MemoryCluster, SeveralTopics
from tests.unit.client.scripted_server import Reply, Reset, ScriptedServer, failure

QUICK = RetryPolicy(deadline_s=1.0, first_pause_s=0.001, longest_pause_s=0.01)
EXISTS = Reply(409, failure(409, 40901, "topic already exists!", outcome="not_written"))


def partition(number: int, replicas: list[int]) -> dict[str, object]:
    return {
        "partition_id": number,
        "leader": 1,
        "replicas": replicas,
        "term": 4,
        "beginning_offset": 0,
        "end_offset": 17,
        "size": 17,
        "size_bytes": 2048,
    }


def partitions(*replicas: list[int]) -> Reply:
    entries = [partition(number, brokers) for number, brokers in enumerate(replicas)]
    return Reply(200, {"status": "success", "topic": "t", "partitions": entries})


def test_create_topic(server: ScriptedServer) -> None:
    server.script(Reply(201, {"status": "success", "message": "created", "partitions": [0, 1]}))
    assert Admin(server.url).create_topic("t", partitions=2, retention_ms=1000) == [0, 1]
    assert server.seen[0].body == {"name": "t", "partitions": 2, "retention_ms": 1000}


def test_a_topic_gone_after_a_lost_answer_counts_as_deleted(server: ScriptedServer) -> None:
    gone = Reply(404, failure(404, 40401, "topic not found", outcome="not_written"))
    server.script(Reset(), gone, gone)
    admin = Admin(server.url, retry=QUICK)
    admin.delete_topic("t")
    with pytest.raises(TopicNotFound):
        admin.delete_topic("t")


def test_a_consumer_gone_after_a_lost_answer_counts_as_deleted(server: ScriptedServer) -> None:
    gone = Reply(404, failure(404, 40403, "Consumer not found", outcome="not_written"))
    server.script(Reset(), gone, gone)
    admin = Admin(server.url, retry=QUICK)
    admin.delete_consumer(7)
    with pytest.raises(ConsumerNotFound):
        admin.delete_consumer(7)
    assert {(seen.method, seen.path) for seen in server.seen} == {("DELETE", "/v1/consumers/7")}


def test_consumers_are_listed_page_by_page(server: ScriptedServer) -> None:
    entries = [{"consumer_id": number, "topic": "t", "name": None, "partition_id": None} for number in range(5)]
    pages = ((entries[:2], 1), (entries[2:4], 3), (entries[4:], None))
    server.script(*(Reply(200, {"status": "success", "consumers": page, "next": after}) for page, after in pages))
    assert [consumer.consumer_id for consumer in Admin(server.url).consumers("t")] == [0, 1, 2, 3, 4]
    assert [seen.query.get("after") for seen in server.seen] == [None, "1", "3"]
    assert {seen.query["topic"] for seen in server.seen} == {"t"}


def test_a_topic_that_was_there_before_is_told(server: ScriptedServer) -> None:
    server.script(Reply(503, failure(503, 50305, outcome="not_written")), EXISTS)
    with pytest.raises(TopicExists):
        Admin(server.url, retry=QUICK).create_topic("t")


def test_a_topic_found_after_a_lost_answer_counts_as_created(server: ScriptedServer) -> None:
    server.script(Reset(), EXISTS, partitions([1], [2]))
    assert Admin(server.url, retry=QUICK).create_topic("t", partitions=2, replication=1) == [0, 1]


@pytest.mark.parametrize("found", [partitions([1]), partitions([1, 2], [2, 3])])
def test_unless_it_is_not_the_topic_that_was_asked_for(server: ScriptedServer, found: Reply) -> None:
    server.script(Reset(), EXISTS, found)
    with pytest.raises(TopicExists):
        Admin(server.url, retry=QUICK).create_topic("t", partitions=2, replication=1)


def test_no_topics_is_an_empty_list(server: ScriptedServer) -> None:
    server.script(Reply(404, failure(404, 40405, "No topics found!")), Reply(200, {"topics": ["a", "b"]}))
    admin = Admin(server.url)
    assert admin.list_topics() == []
    assert admin.list_topics() == ["a", "b"]


def test_staging_topics_are_listed_on_request(server: ScriptedServer) -> None:
    server.answer = lambda _: Reply(200, {"topics": ["_staged.a", "a"]})
    admin = Admin(server.url)
    assert admin.list_topics() == ["a"]
    assert admin.list_topics(internal=True) == ["_staged.a", "a"]


def test_partitions(server: ScriptedServer) -> None:
    server.script(partitions([1, 2, 3]))
    assert Admin(server.url).partitions("t") == [PartitionInfo(0, 1, (1, 2, 3), 4, 0, 17, 17, 2048)]


def test_registrations_and_size(server: ScriptedServer) -> None:
    cluster = server.answer = MemoryCluster()
    cluster.put("a", "b")
    with Admin(server.url) as admin:
        assert admin.register_producer("t") == 3
        assert admin.register_consumer("t", partition=1, start={"offset": 4}) == 5
        assert admin.size("t", 5) == 2
    assert server.seen[1].body == {"topic": "t", "partition_id": 1, "from": {"offset": 4}}


def test_readiness_is_told_not_raised(server: ScriptedServer) -> None:
    server.script(
        Reply(200, {"status": "success", "service": "read-manager", "checks": {"postgres": "ok"}}),
        Reply(503, {"status": "failure", "checks": {"postgres": "refused"}, "error_code": 50301}),
        Reply(503, failure(503, 50304, "no healthy manager")),
        Reset(),
    )
    admin = Admin(server.url)
    assert admin.ready().ready
    assert admin.ready().checks == {"postgres": "refused"}
    third = admin.ready()
    assert not third.ready
    assert third.checks == {"load balancer": "no healthy manager"}
    with pytest.raises(Unavailable):
        admin.ready()
    server.script(Reply(200, {"status": "success", "service": "read-manager"}))
    assert admin.health()["service"] == "read-manager"


def test_my_producer_registers_with_each_topic_on_first_use(server: ScriptedServer) -> None:
    orders, bills = MemoryCluster(topic="orders", consumer_id=11), MemoryCluster(topic="bills", consumer_id=12)
    server.answer = SeveralTopics(orders, bills)
    with MyProducer(Properties(server.url, id=1234, topic="orders")) as producer:
        assert producer.register() == {"orders": 3}
        producer.send(ProducerRecord("orders", "one coffee"))
        producer.send(ProducerRecord("bills", b"3.20"))
        producer.send(ProducerRecord("bills", "2.80"))
    opened = [seen for seen in server.seen if seen.path.endswith("/producers")]
    assert [seen.body for seen in opened] == [{"name": "1234"}, {"name": "1234"}]
    assert (orders.messages, bills.messages) == (["one coffee"], ["3.20", "2.80"])


def test_my_producer_by_topics_and_address(server: ScriptedServer) -> None:
    server.answer = SeveralTopics(MemoryCluster(topic="t1", consumer_id=11), MemoryCluster(topic="t2", consumer_id=12))
    with MyProducer(["t1", "t2"], server.url) as producer:
        assert producer.register() == {"t1": 3, "t2": 3}


def test_my_consumer_takes_topics_in_turn(server: ScriptedServer) -> None:
    one, two = MemoryCluster(topic="t1", consumer_id=11), MemoryCluster(topic="t2", consumer_id=12)
    server.answer = SeveralTopics(one, two)
    one.put("1", "2")
    two.put("3")
    with MyConsumer(["t1", "t2"], server.url) as consumer:
        messages = [consumer.get_message() for _ in range(4)]
    assert [message and message.topic for message in messages] == ["t1", "t2", "t1", None]
    with pytest.raises(ValueError, match="topic"):
        MyConsumer(Properties(server.url, id=1))


def test_api_handler_returns_the_json(server: ScriptedServer) -> None:
    server.answer = MemoryCluster()
    with ApiHandler(server.url) as api:
        producer_id = api.register_producer("orders")["producer_id"]
        assert api.produce("orders", producer_id, "x") == {"partition_id": 0, "offset": 0}
        consumer_id = api.register_consumer("orders", start="earliest")["consumer_id"]
        answer = api.consume("orders", consumer_id)
        assert answer is not None
        assert answer["message"] == "x"
        assert api.consume("orders", consumer_id) is None
        assert api.size("orders", consumer_id)["size"] == 0


def consumers_of(*topics: str) -> Reply:
    entries = [
        {"consumer_id": n, "topic": topic, "name": "billing", "partition_id": None} for n, topic in enumerate(topics)
    ]
    return Reply(200, {"status": "success", "consumers": entries, "next": None})


def test_a_consumer_is_found_by_its_name(server: ScriptedServer) -> None:
    server.script(consumers_of("orders"), consumers_of(), consumers_of("orders", "payments"))
    admin = Admin(server.url)
    assert admin.find_consumer("billing") == ConsumerInfo(0, "orders", "billing", None)
    assert (server.seen[0].query["name"], "topic" in server.seen[0].query) == ("billing", False)
    with pytest.raises(ConsumerNotFound, match="no consumer 'billing' of topic 'orders'"):
        admin.find_consumer("billing", "orders")
    with pytest.raises(InvalidRequest, match=r"2 topics \(orders, payments\): say which topic"):
        admin.find_consumer("billing")


def test_a_consumer_is_deleted_by_its_name(server: ScriptedServer) -> None:
    server.script(consumers_of("orders"), Reply(200, {"status": "success", "message": "consumer 0 deleted"}))
    Admin(server.url).delete_consumer("billing", "orders")
    assert [(seen.method, seen.path) for seen in server.seen] == [
        ("GET", "/v1/consumers"),
        ("DELETE", "/v1/consumers/0"),
    ]
