"""What nginx answers by itself when managers fail, or one client address has too many requests in flight."""

import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import requests

from tests.from_address import session_from
from tests.integration.balanced_site import Site, assert_failure, running_site
from tests.waiting import until

MAX_CLIENT_CONNECTIONS = 6
OTHER_ADDRESS = "127.0.0.2"


@pytest.fixture(scope="module")
def balancer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running_site(tmp_path_factory.mktemp("balancer"), MAX_CLIENT_CONNECTIONS) as site:
        yield site


def test_a_consume_whose_answer_was_lost_may_have_counted(site: Site) -> None:
    """The cursor may have moved; a read that moves none has lost nothing."""
    for manager in site.reads:
        manager.behaviour.hang_up = True
    for path in ("/consumer/consume?topic=x&consumer_id=1", "/consumer/consume/?topic=x", "/consumer%2Fconsume"):
        assert_failure(site.request("GET", path), 50201, "unknown")
        assert any(manager.received for manager in site.reads)
    for path in ("/consumer/consumed", "/size?topic=/consumer/consume", "/topics"):
        assert_failure(site.request("GET", path), 50201, None)


def test_a_consume_that_reached_nobody_has_no_outcome(site: Site) -> None:
    for manager in site.reads:
        manager.stop()
    assert_failure(site.request("GET", "/consumer/consume?topic=x&consumer_id=1"), 50304, None)


def test_one_address_has_a_limit_of_requests_at_the_same_time(site: Site) -> None:
    release = [server for server in site.servers if server not in site.internals]
    for server in release:
        server.behaviour.answer_delay_s = 8.0  # less than nginx waits for a read

    def ask(number: int) -> requests.Response:
        return site.request("GET", "/topics") if number % 2 else site.at_broker(1)

    with ThreadPoolExecutor(MAX_CLIENT_CONNECTIONS) as pool, session_from(OTHER_ADDRESS) as other:
        asked: list[Future[requests.Response]] = [pool.submit(ask, number) for number in range(MAX_CLIENT_CONNECTIONS)]
        until(lambda: site.reached() == MAX_CLIENT_CONNECTIONS, within_s=5, what="as many as may be are in flight")
        for method, path, outcome in (
            ("GET", "/topics", None),
            ("POST", "/producer/produce", "not_written"),
            ("POST", "/v1/brokers/1/topics/x/partitions/0/batches", "not_written"),
        ):
            refused = site.request(method, path)
            assert_failure(refused, 42901, outcome)
            assert "from this address" in refused.json()["message"]
        assert site.reached() == MAX_CLIENT_CONNECTIONS, "a refused request reaches no server"
        assert other.get(site.url + "/topics", timeout=40).status_code == 200
        assert {one.result().status_code for one in asked} == {200}
    for server in release:
        server.behaviour.answer_delay_s = 0.0
    with socket.create_connection(("127.0.0.1", site.port)), socket.create_connection(("127.0.0.1", site.port)):
        assert site.request("GET", "/topics").status_code == 200  # idle connections do not count


def test_a_long_poll_that_another_manager_takes_over_says_how_long_it_has_waited(site: Site) -> None:
    """Otherwise it would wait for the whole time again, longer than the client does."""
    for manager in site.reads:
        manager.behaviour.answer_delay_s = 20.0
    with ThreadPoolExecutor(1) as pool:
        poll = pool.submit(site.request, "POST", "/v1/consumers/1/poll", json={"wait_ms": 6000})
        first = until(
            lambda: next((one for one in site.reads if one.received), None), within_s=5, what="it waits somewhere"
        )
        started_s = time.monotonic()
        [second] = [one for one in site.reads if one is not first]
        second.behaviour.answer_delay_s = 0.0
        until(lambda: time.monotonic() - started_s > 4, within_s=10, what="it has waited for a while")
        first.stop()
        assert poll.result().text == second.name
    assert float(first.received[0].headers["x-myqueue-elapsed"]) < 2
    assert float(second.received[0].headers["x-myqueue-elapsed"]) >= 3.9
    lie = site.request("GET", "/consumer/consume?wait_ms=10", headers={"X-Myqueue-Elapsed": "30.000"})
    assert lie.status_code == 200
    assert second.received[-1].headers["x-myqueue-elapsed"] != "30.000"
