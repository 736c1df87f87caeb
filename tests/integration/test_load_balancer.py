"""nginx and its scripts, for real, in front of stand-ins: where a request goes, and which are sent again."""

import os
import stat
import time

import pytest

from myqueue.protocol.routes import ROUTES, Route
from tests.calls import PARAMETERS
from tests.integration.balanced_site import (
    CHECKED_S,
    RETURN_S,
    SECRET,
    Site,
    assert_failure,
)
from tests.waiting import until


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_every_route_reaches_its_tier(site: Site, route: Route) -> None:
    answer = site.request(route.method, route.path.format_map(PARAMETERS)).text
    assert answer.startswith(route.tier)


@pytest.mark.parametrize(
    ("method", "tier"),
    [("GET", "read"), ("HEAD", "read")]
    + [(method, "write") for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "PROPFIND")],
)
def test_the_method_decides(site: Site, method: str, tier: str) -> None:
    assert site.request(method, "/anything/at%20all?x=%2F").status_code == 200
    receivers = [manager for manager in site.managers if manager.received]
    assert [manager.name.partition("-")[0] for manager in receivers] == [tier]
    received = receivers[0].received[0]
    assert (received.method, received.target) == (method, "/anything/at%20all?x=%2F")


def test_reads_take_turns(site: Site) -> None:
    answers = site.who_answers(20)
    assert answers[0::2] == [answers[0]] * 10
    assert answers[1::2] == [answers[1]] * 10
    assert answers[0] != answers[1]


def test_a_read_that_hits_a_dying_manager_is_answered_by_the_other(site: Site) -> None:
    site.reads[0].behaviour.hang_up = True
    started_s = time.monotonic()
    assert site.who_answers(6) == ["read-2"] * 6
    elapsed_s = time.monotonic() - started_s
    # The first failure marked it: no further read went there before a check, one a second, found it well.
    assert len(site.reads[0].received) <= 2 + int(elapsed_s)


def test_reads_survive_a_manager_that_is_gone(site: Site) -> None:
    site.reads[1].stop()
    assert site.who_answers(20) == ["read-1"] * 20
    site.reads[1].reset()
    until(lambda: set(site.who_answers(2)) == {"read-1", "read-2"}, within_s=RETURN_S)


def test_a_manager_that_is_not_ready_gets_no_reads_until_it_is(site: Site) -> None:
    site.reads[0].behaviour.ready = False
    until(lambda: site.who_answers(4) == ["read-2"] * 4, within_s=CHECKED_S)
    site.reads[0].behaviour.ready = True
    until(lambda: set(site.who_answers(2)) == {"read-1", "read-2"}, within_s=RETURN_S)


def test_when_no_manager_is_ready_they_answer_for_themselves(site: Site) -> None:
    for manager in site.reads:
        manager.behaviour.ready = False
        manager.behaviour.status = 503
    until(lambda: all(manager.behaviour.checks > 1 for manager in site.reads), within_s=CHECKED_S, what="both checked")
    answers = [site.request("GET", "/topics") for _ in range(4)]
    assert {answer.status_code for answer in answers} == {503}
    assert {answer.text for answer in answers} == {"read-1", "read-2"}


def test_when_no_read_manager_is_left(site: Site) -> None:
    for manager in site.reads:
        manager.stop()
    assert_failure(site.request("GET", "/topics"), 50304, None)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_a_write_is_never_resent(site: Site, method: str) -> None:
    site.request(method, "/warm-up")  # leaves an idle connection, the tempting case
    site.write.received.clear()
    site.write.behaviour.hang_up = True
    assert_failure(site.request(method, "/producer/produce", data=b"{}"), 50201, "unknown")
    assert len(site.write.received) == 1


def test_a_write_that_could_not_be_sent_says_so(site: Site) -> None:
    site.write.stop()
    assert_failure(site.request("POST", "/topics", data=b"{}"), 50304, "not_written")


def test_batches_go_to_the_broker_of_the_path_as_they_are(site: Site) -> None:
    path = "/v1/brokers/2/topics/a%20b/partitions/0/batches?offset=0&x=%2F"
    batch, secret = os.urandom(4 << 20), {"X-Myqueue-Secret": "guess", "X-Myqueue-Grant": "granted"}
    assert site.request("POST", path, data=batch, headers=secret).text == "broker-2"
    [received] = site.brokers[2].received
    assert (received.method, received.target, received.body) == ("POST", path, batch)
    assert "x-myqueue-secret" not in received.headers
    assert received.headers["x-myqueue-grant"] == "granted"
    assert len(received.headers["x-request-id"]) == 32
    site.brokers[1].behaviour.body = batch * 2
    assert site.at_broker(1).content == batch * 2
    for status in (204, 404, 421, 507):
        site.brokers[1].behaviour.status = status
        site.brokers[1].behaviour.body = b"" if status == 204 else b"its own words"
        answer = site.at_broker(1)
        assert (answer.status_code, answer.content) == (status, site.brokers[1].behaviour.body)
    assert "temporary file" not in site.log.read_text()
    assert "buffered to" not in site.log.read_text()


def test_a_batch_that_is_too_large(site: Site) -> None:
    answer = site.at_broker(1, "POST", data=b"x" * ((4 << 20) + (64 << 10) + 1))
    assert_failure(answer, 41301, "not_written")
    assert site.reached() == 0


def test_an_append_is_never_resent(site: Site) -> None:
    for number in (1, 1):
        site.at_broker(number)  # leaves an idle connection, the tempting case
    site.brokers[1].received.clear()
    site.brokers[1].behaviour.hang_up = True
    assert_failure(site.at_broker(1, "POST", data=b"batch"), 50201, "unknown")
    assert len(site.brokers[1].received) == 1
    assert site.brokers[2].received == []
    assert_failure(site.at_broker(1), 50201, None)


def test_a_broker_that_is_away(site: Site) -> None:
    site.brokers[1].stop()
    assert_failure(site.at_broker(1, "POST", data=b"batch"), 50301, "not_written")
    assert_failure(site.at_broker(1), 50301, None)
    assert site.at_broker(2).text == "broker-2"


@pytest.mark.parametrize("number", ["9", "01", "1234567890", "x"])
def test_an_unknown_broker(site: Site, number: str) -> None:
    path = f"/v1/brokers/{number}/topics/x/partitions/0/batches"
    if number == "9":
        assert_failure(site.request("POST", path, data=b"batch"), 40406, "not_written")
        assert_failure(site.request("GET", path), 40406, None)
        assert site.reached() == 0
    else:  # no number of a broker: the managers say that there is no such path
        assert site.request("GET", path).text.startswith("read")


def test_the_secret_is_not_for_everybody_s_eyes(site: Site) -> None:
    path = site.log.parent / "nginx" / "site-secret.conf"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert SECRET not in site.log.read_text() + site.access_log.read_text()


def test_a_poll_is_a_read_that_another_read_manager_may_answer(site: Site) -> None:
    site.reads[0].behaviour.hang_up = True
    answers = [site.request("POST", "/v1/consumers/7/poll", json={"member": "a"}) for _ in range(4)]
    assert [answer.text for answer in answers] == ["read-2"] * 4
    assert {received.body for received in site.reads[1].received} == {b'{"member": "a"}'}
    assert site.request("POST", "/v1/consumers/7/polls", json={}).text == "write"
