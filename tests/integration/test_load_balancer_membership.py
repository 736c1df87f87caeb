"""Read managers and brokers join, move, hang and leave; nginx follows the write manager's listing."""

import json
import time
from collections.abc import Iterator

import pytest

from tests.integration.balanced_site import (
    CHECKED_S,
    LISTED_S,
    NEXT_LISTING_S,
    RETURN_S,
    SECRET,
    Site,
    assert_failure,
)
from tests.integration.stand_in_manager import Behaviour, StandInManager
from tests.waiting import throughout, until


@pytest.fixture
def followed(site: Site) -> Iterator[list[StandInManager]]:
    """Two that the configuration does not name; nginx sends them reads."""
    more = [StandInManager("read-3"), StandInManager("read-4")]
    for server in more:
        server.start()
    try:
        site.place_reads([*site.reads, *more])
        until(lambda: len(set(site.who_answers(4))) == 4, within_s=LISTED_S)
        site.await_settled([*site.reads, *more])
        for server in (*site.reads, *more):
            server.received.clear()
        yield more
    finally:
        for server in (*site.reads, *more):
            server.reset()
        site.place_reads(site.reads)
        until(lambda: set(site.who_answers(4)) <= {"read-1", "read-2"})
        for server in more:
            server.stop()


def test_read_managers_that_join_and_leave_are_followed(site: Site, followed: list[StandInManager]) -> None:
    answers = site.who_answers(12)
    assert {answers.count(name) for name in ("read-1", "read-2", "read-3", "read-4")} == {3}
    site.internal.stop()  # known managers stay while the write manager does not answer
    throughout(lambda: len(set(site.who_answers(4))) == 4, for_s=NEXT_LISTING_S, what="all four get reads")
    site.internal.reset()
    followed[0].stop()
    assert set(site.who_answers(12)) == {"read-1", "read-2", "read-4"}
    followed[0].reset()
    until(lambda: "read-3" in site.who_answers(4), within_s=RETURN_S)
    site.place_reads([followed[0]])
    until(lambda: "read-4" not in site.who_answers(4), within_s=LISTED_S)
    assert set(site.who_answers(6)) == {"read-1", "read-2", "read-3"}  # those of the configuration need no listing


def test_connections_to_followed_managers_are_kept(site: Site, followed: list[StandInManager]) -> None:
    before = [server.read_connections for server in followed]
    answers = site.who_answers(40)
    assert {answers.count(server.name) for server in followed} == {10}
    opened = [server.read_connections - count for server, count in zip(followed, before, strict=True)]
    assert max(opened) <= 2, "one for each worker of nginx"


def test_a_read_that_a_followed_manager_fails_goes_to_the_next(site: Site, followed: list[StandInManager]) -> None:
    """Whatever the method, with its body, and however many fail it on the way."""
    failing = [*site.reads, followed[0]]
    for method, path, body in (
        ("GET", "/topics", None),
        ("HEAD", "/topics", None),
        ("POST", "/v1/consumers/7/poll", b'{"member": "a"}' * 20_000),
    ):
        for server in failing:
            server.reset()
            server.behaviour.hang_up = True
        followed[1].received.clear()
        answers = [site.request(method, path, data=body) for _ in range(4)]
        assert [answer.status_code for answer in answers] == [200] * 4
        assert {(got.method, got.target, got.body) for got in followed[1].received} == {(method, path, body or b"")}
        assert {answer.headers["X-Request-Id"] for answer in answers} == {
            got.headers["x-request-id"] for got in followed[1].received
        }
        assert sum(len(server.received) for server in failing) <= 6, "a manager that failed gets no more until a check"
        for server in failing:
            server.reset()
        until(lambda: len(set(site.who_answers(4))) == 4, within_s=RETURN_S)


def test_hung_managers_get_no_new_requests(site: Site, followed: list[StandInManager]) -> None:
    hung = [site.reads[0], followed[0]]
    for manager in hung:
        manager.behaviour.delay_s = 12.0
    followed[1].behaviour.ready = False
    until(
        lambda: all(manager.behaviour.abandoned_checks for manager in hung) and followed[1].behaviour.checks > 1,
        within_s=CHECKED_S,
        what="a check of each hung manager timed out",
    )
    began = time.monotonic()
    assert site.who_answers(6) == ["read-2"] * 6
    assert time.monotonic() - began < 10
    assert [manager.received for manager in hung] == [[], []]


def test_a_new_manager_gets_no_reads_before_it_is_ready(site: Site) -> None:
    new = StandInManager("new")
    new.start()
    new.behaviour.ready = False
    try:
        site.place_reads([*site.reads, new])
        throughout(
            lambda: set(site.who_answers(10)) == {"read-1", "read-2"},
            for_s=NEXT_LISTING_S,
            what="only ready managers get reads",
        )
        new.behaviour.ready = True
        until(lambda: "new" in site.who_answers(3), within_s=RETURN_S)
    finally:
        site.place_reads(site.reads)
        until(lambda: "new" not in site.who_answers(3), within_s=RETURN_S)
        new.stop()


def test_when_no_followed_manager_is_left_either(site: Site, followed: list[StandInManager]) -> None:
    for server in (*site.reads, *followed):
        server.stop()
    assert_failure(site.request("GET", "/topics"), 50304, None)
    assert_failure(site.request("POST", "/v1/consumers/7/poll", json={}), 50304, "not_written")
    for server in (*site.reads, *followed):
        server.reset()
        server.behaviour.hang_up = True
    until(lambda: site.request("GET", "/topics").status_code == 502, within_s=RETURN_S)
    assert_failure(site.request("GET", "/topics"), 50201, None)


def test_what_is_no_address_is_not_followed(site: Site) -> None:
    wrong = ["http://127.0.0.1:1/x", "http://127.0.0.1", "127.0.0.1:1 127.0.0.1:2", "http://$host:80", None, 7]
    right = StandInManager("right")
    right.start()
    try:
        endpoints = [*wrong, f"http://{right.address}"]
        site.internal.behaviour.body = json.dumps(
            {"managers": [{"endpoint": one} for one in endpoints], "active": True, "epoch": 1}
        ).encode()
        until(lambda: "right" in site.who_answers(3), within_s=LISTED_S)
        followed = site.log.read_text().rpartition("managers: reads go to ")[2].splitlines()[0]
        assert followed == right.address
    finally:
        site.place_reads(site.reads)
        until(lambda: "right" not in site.who_answers(3), within_s=RETURN_S)
        right.stop()


def test_brokers_that_join_move_and_leave_are_followed(site: Site) -> None:
    elsewhere, third = StandInManager("elsewhere"), StandInManager("third")
    for server in (elsewhere, third):
        server.start()
    try:
        site.place_brokers({1: elsewhere, 3: third})
        until(lambda: site.at_broker(3).text == "third", within_s=RETURN_S)
        assert site.at_broker(1, "POST", data=b"batch").text == "elsewhere"
        assert_failure(site.at_broker(2), 40406, None)
        assert {received.headers["x-myqueue-secret"] for received in site.internal.received} == {SECRET}

        # What is known stays while the write manager cannot say.
        for trouble in ("status", "body", "silence"):
            if trouble == "status":
                site.internal.behaviour.status = 503
            elif trouble == "body":
                site.internal.behaviour = Behaviour(body=b"nonsense")
            else:
                site.internal.stop()
            throughout(
                lambda: (site.at_broker(3).text, site.at_broker(1).text) == ("third", "elsewhere"),
                for_s=NEXT_LISTING_S,
                what="brokers stay where they were",
            )
        site.internal.reset()
        site.place_brokers(site.brokers)
        until(lambda: site.at_broker(1).text == "broker-1", within_s=LISTED_S)
        assert_failure(site.at_broker(3), 40406, None)
    finally:
        for server in (elsewhere, third):
            server.stop()
