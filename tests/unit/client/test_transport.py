"""The transport against a server that misbehaves: what is repeated, under which key, for how long, with which error."""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from myqueue import (
    DiskFull,
    InternalError,
    MyQueueError,
    NoLeader,
    RetryPolicy,
    Timeouts,
    TopicNotFound,
    Unavailable,
    UpstreamFailed,
)
from myqueue.protocol import routes
from myqueue.simple_api import SimpleApi
from myqueue.transport import Transport
from tests.unit.client.scripted_server import Reply, Reset, ScriptedServer, Seen, failure

QUICK = RetryPolicy(deadline_s=3.0, first_pause_s=0.01, longest_pause_s=0.05)
PRODUCED = Reply(200, {"status": "success", "partition_id": 0, "offset": 7})


def api(server: ScriptedServer, retry: RetryPolicy = QUICK, read_s: float = 5.0) -> SimpleApi:
    return SimpleApi(Transport(server.url, retry=retry, timeouts=Timeouts(connect_s=5.0, read_s=read_s)))


def test_produce_is_repeated_under_the_same_key_through_every_kind_of_failure(server: ScriptedServer) -> None:
    server.script(
        Reset(),
        Reply(502, "<html>bad gateway</html>"),
        Reply(503, failure(503, 50302)),
        Reply(504, failure(504, 50401, outcome="unknown")),
        Reply(507, failure(507, 50701)),
        Reply(429, failure(429, 42901)),
        PRODUCED,
    )
    assert api(server).produce("t", 0, "hello")["offset"] == 7
    assert len(server.seen) == 7
    assert len({seen.key for seen in server.seen}) == 1
    assert all(seen.body == {"topic": "t", "producer_id": 0, "message": "hello"} for seen in server.seen)


def test_different_calls_have_different_keys(server: ScriptedServer) -> None:
    server.answer = lambda _: PRODUCED
    client = api(server)
    for _ in range(3):
        client.produce("t", 0, "same")
    assert len({seen.key for seen in server.seen}) == 3


def test_consume_is_repeated_under_the_same_key(server: ScriptedServer) -> None:
    server.script(Reset(), Reply(200, {"message": "m"}, after_s=0.8), Reply(204, None))
    assert api(server, read_s=0.4).consume("t", 0) is None
    assert len(server.seen) == 3
    assert len({seen.key for seen in server.seen}) == 1


def test_waiting_at_the_server_does_not_time_out(server: ScriptedServer) -> None:
    server.script(Reply(204, None, after_s=0.8))
    assert api(server, read_s=0.4).consume("t", 0, wait_ms=1000) is None
    assert server.seen[0].query == {"topic": "t", "consumer_id": "0", "wait_ms": "1000"}


def test_retry_after_is_honoured(server: ScriptedServer) -> None:
    server.script(Reply(503, failure(503, 50301), {"Retry-After": "1"}), PRODUCED)
    api(server).produce("t", 0, "x")
    assert server.seen[1].at - server.seen[0].at >= 1.0


def test_a_retry_after_beyond_the_deadline_is_not_waited_for(server: ScriptedServer) -> None:
    server.script(Reply(503, failure(503, 50302, outcome="not_written"), {"Retry-After": "60"}))
    started = time.monotonic()
    with pytest.raises(NoLeader) as caught:
        api(server).produce("t", 0, "x")
    assert time.monotonic() - started < 10
    assert caught.value.outcome == "not_written"
    assert caught.value.retry_after_s == 60


def test_the_deadline_ends_the_retries(server: ScriptedServer) -> None:
    server.answer = lambda _: Reply(503, failure(503, 50301, outcome="not_written"))
    started = time.monotonic()
    with pytest.raises(Unavailable):
        api(server, RetryPolicy(deadline_s=0.6, first_pause_s=0.01, longest_pause_s=0.05)).produce("t", 0, "x")
    assert 0.3 < time.monotonic() - started < 2.0
    assert len(server.seen) > 2


def test_the_deadline_also_cuts_a_hanging_attempt(server: ScriptedServer) -> None:
    server.answer = lambda _: Reply(after_s=2.0)
    started = time.monotonic()
    with pytest.raises(Unavailable) as caught:
        SimpleApi(Transport(server.url, retry=RetryPolicy(deadline_s=0.5))).produce("t", 0, "x")
    assert time.monotonic() - started < 1.9
    assert caught.value.outcome == "unknown"


def test_a_refused_connection_is_not_written() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        client = SimpleApi(Transport(address, retry=RetryPolicy(deadline_s=0.2, first_pause_s=0.01)))
        with pytest.raises(Unavailable, match="cannot connect") as caught:
            client.produce("t", 0, "x")
    assert caught.value.outcome == "not_written"


def test_once_unknown_stays_unknown(server: ScriptedServer) -> None:
    """The first attempt may have been carried out, whatever the last one says."""
    server.script(Reset(), Reply(404, failure(404, 40401, "topic not found", outcome="not_written")))
    with pytest.raises(TopicNotFound) as caught:
        api(server).produce("t", 0, "x")
    assert caught.value.outcome == "unknown"


def test_a_read_has_no_outcome(server: ScriptedServer) -> None:
    server.answer = lambda _: Reply(502, None)
    with pytest.raises(UpstreamFailed) as caught:
        api(server, RetryPolicy(deadline_s=0.05, first_pause_s=0.01)).list_topics()
    assert caught.value.outcome is None


@pytest.mark.parametrize(
    ("status", "code", "kind"), [(404, 40401, TopicNotFound), (500, 50001, InternalError), (400, 40001, MyQueueError)]
)
def test_what_no_retry_can_help_is_raised_at_once(
    server: ScriptedServer, status: int, code: int, kind: type[MyQueueError]
) -> None:
    server.script(Reply(status, failure(status, code, "told")))
    with pytest.raises(kind, match="told") as caught:
        api(server).produce("t", 0, "x")
    assert len(server.calls("/producer/produce")) == 1
    assert caught.value.request_id == "r1"


def test_registering_without_a_name_is_not_repeated_when_it_may_have_worked(server: ScriptedServer) -> None:
    server.script(Reset())
    with pytest.raises(Unavailable):
        api(server).register_producer("t")
    assert len(server.seen) == 1
    server.script(Reply(503, failure(503, 50305, outcome="not_written")), Reply(201, {"producer_id": 4}))
    assert api(server).register_producer("t")["producer_id"] == 4


def test_registering_with_a_name_is_repeated(server: ScriptedServer) -> None:
    server.script(Reset(), Reply(200, {"consumer_id": 4}))
    assert api(server).register_consumer("t", "billing", start={"timestamp": 5})["consumer_id"] == 4
    assert [seen.body for seen in server.seen] == [{"topic": "t", "name": "billing", "from": {"timestamp": 5}}] * 2


def test_reads_carry_the_newest_token(server: ScriptedServer) -> None:
    client = api(server)
    server.script(
        Reply(201, {"producer_id": 0}, {"X-Myqueue-Token": "1-b"}),
        Reply(200, {"offset": 0}, {"X-Myqueue-Token": "1-a"}),
        Reply(200, {"topics": ["t"]}),
    )
    client.register_producer("t", "p")
    client.produce("t", 0, "x")
    client.list_topics()
    assert [seen.headers.get("x-myqueue-token") for seen in server.seen] == [None, None, "1-b"]


def test_an_answer_that_is_not_ours_is_an_error(server: ScriptedServer) -> None:
    for strange in (
        Reply(200, "<html>hello</html>"),
        Reply(302, None, {"Location": "/login"}),
        Reply(200, "[]"),
        Reply(200, None),
    ):
        server.script(strange)
        with pytest.raises(MyQueueError, match=f"{server.url}: what answers is not myqueue .*, HTTP [23]0"):
            api(server).list_topics()
    assert len(server.seen) == 4


def test_paths_are_quoted_and_the_client_names_itself(server: ScriptedServer) -> None:
    api(server).list_partitions("a/b?c")
    assert server.seen[0].path == "/topics/a%2Fb%3Fc/partitions"
    assert server.seen[0].headers["user-agent"].startswith("myqueue-python/")


def test_threads_share_a_transport(server: ScriptedServer) -> None:
    server.answer = lambda seen: Reply(200, {"offset": int(seen.body["message"]), "partition_id": 0}, after_s=0.01)
    client = api(server)
    with ThreadPoolExecutor(8) as pool:
        offsets = list(pool.map(lambda n: client.produce("t", 0, str(n))["offset"], range(200)))
    assert offsets == list(range(200))
    client.close()


def test_closing_ends_a_pause(server: ScriptedServer) -> None:
    server.answer = lambda _: Reply(507, failure(507, 50701), {"Retry-After": "20"})
    transport = Transport(server.url, retry=RetryPolicy(deadline_s=60))
    timer = threading.Timer(0.2, transport.close)
    timer.start()
    started = time.monotonic()
    with pytest.raises(DiskFull):
        transport.call(routes.LIST_TOPICS)
    assert time.monotonic() - started < 5
    timer.join()


def test_a_body_with_an_unknown_code_is_still_an_error(server: ScriptedServer) -> None:
    def answer(seen: Seen) -> Reply:
        return Reply(418, failure(418, 41801, "new in a later release"))

    server.answer = answer
    with pytest.raises(MyQueueError, match="new in a later release"):
        api(server).list_topics()
