"""Every error that a call of the library can raise says what it is about: its topic, consumer, producer or URL."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from myqueue import (
    Admin,
    Consumer,
    MyQueueError,
    OffsetOutOfRange,
    Producer,
    Reader,
    RetryPolicy,
    async_routing,
    routing,
)
from myqueue.protocol import errors
from tests.unit.client.failing_appends import OPEN, PRODUCE, ROUTING, is_append
from tests.unit.client.memory_cluster import MemoryCluster
from tests.unit.client.scripted_server import Reply, Reset, ScriptedServer, Seen, Step, failure

QUICK = RetryPolicy(deadline_s=0.1, first_pause_s=0.01, longest_pause_s=0.02)
# Every error that a server answers with.
KINDS = sorted(set(errors.BY_CODE.values()) - {errors.NotMyQueue}, key=lambda kind: kind.error_code)
# One for each way in which the library treats an error: it goes on, or it does not, and whose fault it is.
SOME = (errors.InvalidRequest, errors.Forbidden, errors.StaleLease, errors.ManagerUnavailable, errors.InternalError)


@pytest.fixture(autouse=True)
def short_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (routing, async_routing):
        monkeypatch.setattr(module, "CALL_S", 0.1)


def refusal(kind: type[MyQueueError]) -> Reply:
    """As a server sends it."""
    error = kind(details={"beginning_offset": 5} if kind is OffsetOutOfRange else None)
    return Reply(kind.http_status, error.to_body("r1"))


@dataclass
class Call:
    """Fails at one kind of request."""

    name: str
    fails: Callable[[Seen], bool]
    use: Callable[[str], object]


def at(path: str) -> Callable[[Seen], bool]:
    return lambda seen: seen.path == path or seen.path.endswith(path)


def send(url: str, **more: Any) -> None:
    with Producer(url, "orders", name="till-1", retry=QUICK, delivery_timeout_s=0.15) as producer:
        producer.send("v", partition=0, **more).result(5)


def poll(url: str) -> None:
    with Consumer(url, "orders", "billing", start="earliest", on_gap="error", retry=QUICK) as consumer:
        consumer.poll(5)


def use_consumer(use: Callable[[Consumer], object]) -> Callable[[str], object]:
    def call(url: str) -> None:
        with Consumer(url, "orders", "billing", start="earliest", commit="manual", retry=QUICK) as consumer:
            consumer.poll(5)
            use(consumer)

    return call


def use_admin(use: Callable[[Admin], object]) -> Callable[[str], object]:
    def call(url: str) -> None:
        with Admin(url, retry=QUICK) as admin:
            use(admin)

    return call


def read(url: str) -> None:
    with Reader(url, "orders", {0: 0}, retry=QUICK) as reader:
        reader.poll(5)


def is_fetch(seen: Seen) -> bool:
    return seen.method == "GET" and seen.path.endswith("/batches")


APPEND, FETCH = Call("append", is_append, send), Call("fetch", is_fetch, poll)
CALLS = (
    Call("fetch of a reader", is_fetch, read),
    Call("open a producer", at(OPEN), send),
    Call("routing of a producer", at(ROUTING), send),
    Call("routing of a consumer", at(ROUTING), poll),
    Call("routing of a reader", at(ROUTING), read),
    Call("idempotent send", at(PRODUCE), lambda url: send(url, idempotency_key="k")),
    Call("register a consumer", at("/consumer/register"), poll),
    Call("leases", at("/poll"), poll),
    Call("commit", at("/commit"), use_consumer(lambda consumer: consumer.commit())),
    Call("commit of offsets", at("/commit"), use_consumer(lambda consumer: consumer.commit({0: 1}))),
    Call("commit without waiting", at("/commit"), use_consumer(lambda consumer: consumer.commit(wait=False))),
    Call("seek", at("/seek"), use_consumer(lambda consumer: consumer.seek(0, to=0))),
    Call("lag", at("/lag"), use_consumer(lambda consumer: consumer.lag())),
    Call("size", at("/size"), use_consumer(lambda consumer: consumer.size())),
    Call("list topics", at("/topics"), use_admin(lambda admin: admin.list_topics())),
    Call("create a topic", at("/topics"), use_admin(lambda admin: admin.create_topic("orders"))),
    Call("delete a topic", at("/v1/topics/orders"), use_admin(lambda admin: admin.delete_topic("orders"))),
    Call("describe a topic", at("/v1/topics/orders"), use_admin(lambda admin: admin.describe_topic("orders"))),
    Call("offsets", at("/offsets"), use_admin(lambda admin: admin.offsets("orders"))),
    Call("consumers", at("/consumers"), use_admin(lambda admin: admin.consumers("orders"))),
    Call("all consumers", at("/consumers"), use_admin(lambda admin: admin.consumers())),
    Call("cluster", at("/cluster"), use_admin(lambda admin: admin.cluster())),
    Call("health", at("/healthz"), use_admin(lambda admin: admin.health())),
)


def raised(server: ScriptedServer, call: Call, step: Step) -> MyQueueError:
    cluster = MemoryCluster()
    cluster.put("a")
    server.answer = lambda seen: step if call.fails(seen) else cluster(seen)
    with pytest.raises(MyQueueError) as caught:
        call.use(server.url)
    return caught.value


def says_what_it_is_about(error: MyQueueError, url: str) -> bool:
    return any(subject in str(error) for subject in ("'orders'", "'billing'", "'till-1'", url))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("call", [APPEND, FETCH], ids=lambda call: call.name)
def test_every_error_of_a_broker(server: ScriptedServer, call: Call) -> None:
    for kind in KINDS:
        error = raised(server, call, refusal(kind))
        assert "'orders'" in str(error), f"{kind.__name__} of {call.name}: {error}"


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_errors_of_every_call(server: ScriptedServer, call: Call) -> None:
    for kind in SOME:
        error = raised(server, call, refusal(kind))
        assert says_what_it_is_about(error, server.url), f"{kind.__name__} of {call.name}: {error}"


@pytest.mark.parametrize("call", [APPEND, FETCH, *CALLS], ids=lambda call: call.name)
@pytest.mark.parametrize("step", [Reset(), Reply(200, "<html>"), Reply(302, "<html>")], ids=["reset", "200", "302"])
def test_no_answer_of_myqueue(server: ScriptedServer, call: Call, step: Step) -> None:
    error = raised(server, call, step)
    assert says_what_it_is_about(error, server.url), f"{call.name}: {error}"


def test_a_commit_of_a_partition_that_is_not_there_names_those_that_are(server: ScriptedServer) -> None:
    cluster = MemoryCluster()
    missing = failure(404, 40402, "partition not found", details={"partition_id": 99})

    def answer(seen: Seen) -> Step:
        if seen.path == "/v1/topics/orders":
            return Reply(200, {"partitions": 4})
        return Reply(404, missing) if seen.path.endswith("/commit") else cluster(seen)

    server.answer = answer
    with (
        Consumer(server.url, "orders", "billing", commit="manual", retry=QUICK) as consumer,
        pytest.raises(errors.PartitionNotFound) as caught,
    ):
        consumer.commit({99: 0})
    assert str(caught.value) == "partition not found: 99 of topic 'orders'; its partitions are 0 to 3"
