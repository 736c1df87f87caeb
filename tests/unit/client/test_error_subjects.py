"""An error says what it is about, and what was probably meant."""

import pytest

from myqueue import Admin, Consumer, ConsumerNotFound, ManagerUnavailable, MyQueueError, RetryPolicy, TopicNotFound
from myqueue.error_subjects import close_match
from myqueue.protocol import errors
from myqueue.simple_api import SimpleApi
from myqueue.transport import Transport
from tests.unit.client.scripted_server import Reply, Reset, ScriptedServer, failure

QUICK = RetryPolicy(deadline_s=0.3, first_pause_s=0.01, longest_pause_s=0.02)
TOPICS = Reply(200, {"status": "success", "topics": ["orders", "bills"]})


def refusal(kind: type[MyQueueError]) -> Reply:
    return Reply(kind.http_status, failure(kind.http_status, kind.error_code, kind.default_message))


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("ordres", "orders"),
        ("ORDERS", "orders"),
        ("order", "orders"),
        ("invoices", None),
        ("t1", None),
        ("orders", None),
    ],
)
def test_the_name_that_was_probably_meant(name: str, meant: str | None) -> None:
    assert close_match(name, ["bills", "orders", "t2"]) == meant


def test_a_topic_that_is_not_found_is_named_with_its_likeness(server: ScriptedServer) -> None:
    server.script(refusal(TopicNotFound), TOPICS)
    with Admin(server.url, retry=QUICK) as admin, pytest.raises(TopicNotFound) as caught:
        admin.describe_topic("ordres")
    assert str(caught.value) == caught.value.message == "topic not found: 'ordres'; did you mean 'orders'?"


@pytest.mark.parametrize("step", [Reset(), Reply(503, failure(503, 50304)), Reply(200, "<html>"), Reply(200, {})])
def test_a_failed_look_for_it_masks_nothing(server: ScriptedServer, step: Reply | Reset) -> None:
    server.script(refusal(TopicNotFound), step)
    with Admin(server.url, retry=QUICK) as admin, pytest.raises(TopicNotFound, match=r"^topic not found: 'ordres'$"):
        admin.describe_topic("ordres")
    assert len(server.seen) == 2


def test_a_caller_that_waits_for_a_topic_looks_for_it_once_a_second(server: ScriptedServer) -> None:
    server.answer = lambda seen: TOPICS if seen.path == "/topics" else refusal(TopicNotFound)
    with Admin(server.url, retry=QUICK) as admin:
        for _ in range(20):
            with pytest.raises(TopicNotFound, match="topic not found: 'ordres'"):
                admin.describe_topic("ordres")
    assert 1 <= len(server.calls("/topics")) < 10


def test_a_partition_is_named_with_those_there_are(server: ScriptedServer) -> None:
    server.script(refusal(errors.PartitionNotFound), Reply(200, {"status": "success", "partitions": 4}))
    with Admin(server.url, retry=QUICK) as admin, pytest.raises(errors.PartitionNotFound) as caught:
        admin.offset_at("orders", 7, 5)
    assert str(caught.value) == "partition not found: 7 of topic 'orders'; its partitions are 0 to 3"


def test_a_producer_and_a_topic_that_exists_are_named(server: ScriptedServer) -> None:
    server.script(refusal(errors.ProducerNotFound), refusal(errors.TopicExists))
    api = SimpleApi(Transport(server.url, retry=QUICK))
    with pytest.raises(errors.ProducerNotFound, match=r"^Producer not found: 3 of topic 'orders'$"):
        api.produce("orders", 3, "x")
    with pytest.raises(errors.TopicExists, match=r"^topic already exists: 'orders'$"):
        api.create_topic("orders")


def test_a_consumer_is_named_by_its_name_where_it_is_known(server: ScriptedServer) -> None:
    server.script(Reply(201, {"consumer_id": 12}), refusal(ConsumerNotFound), refusal(ConsumerNotFound))
    with Consumer(server.url, topic="orders", name="billing", retry=QUICK) as consumer:
        with pytest.raises(ConsumerNotFound, match=r"^Consumer not found: 'billing' \(id 12\) of topic 'orders'$"):
            consumer.lag()
        with (
            Admin(server.url, retry=QUICK) as admin,
            pytest.raises(ConsumerNotFound, match=r"^Consumer not found: 12$"),
        ):
            admin.lag(12)


def test_a_server_that_fails_is_named_with_its_url(server: ScriptedServer) -> None:
    server.answer = lambda _: refusal(ManagerUnavailable)
    with Admin(server.url, retry=QUICK) as admin, pytest.raises(ManagerUnavailable) as caught:
        admin.describe_topic("orders")
    assert str(caught.value) == f"no healthy manager can take the request: topic 'orders', at {server.url}"


def test_a_conflict_names_who_has_it(server: ScriptedServer) -> None:
    server.script(refusal(errors.RegistrationConflict))
    with Admin(server.url, retry=QUICK) as admin, pytest.raises(errors.RegistrationConflict) as caught:
        admin.register_consumer("orders", "billing", partition=2)
    assert str(caught.value).endswith("settings: partition 2 of consumer 'billing' of topic 'orders'")
