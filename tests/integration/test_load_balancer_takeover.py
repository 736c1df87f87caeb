"""nginx follows the active write manager: by their own word, and by the writes that fail."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests

from tests.integration.balanced_site import NEXT_LISTING_S, RETURN_S, Site, assert_failure
from tests.integration.stand_in_manager import StandInManager
from tests.waiting import throughout, until

METHODS = ("POST", "PUT", "DELETE", "PATCH")
LOST_S = 5.0  # two checks without answer, and the machine may be busy


def write(site: Site, method: str = "POST") -> requests.Response:
    return site.request(method, "/producer/produce", data=b'{"a": 1}')


def has_no_script(site: Site, pool: str) -> bool:
    """nginx's own directives take the writes, to that upstream."""
    flags = site.upstream_files
    return (flags / "write").exists() and (flags / "write_2").exists() == (pool == "write_2")


def test_writes_go_to_the_one_that_takes_over(site: Site) -> None:
    assert has_no_script(site, "write_1")
    site.take_over()
    until(lambda: write(site).text == "write-2", within_s=RETURN_S)
    until(lambda: has_no_script(site, "write_2"), within_s=RETURN_S, what="no script chooses any more")
    before = len(site.write.received)
    assert [write(site, method).text for method in METHODS] == ["write-2"] * 4
    assert len(site.write.received) == before


@pytest.mark.parametrize("method", METHODS)
def test_a_refused_connection_goes_on_to_the_other_one(site: Site, method: str) -> None:
    """Before any check: the one that was active is gone, the standby has just become active."""
    site.standby.reset()
    site.write.stop()
    answer = write(site, method)
    assert answer.text == "write-2"
    [received] = site.standby.received
    assert (received.method, received.target, received.body) == (method, "/producer/produce", b'{"a": 1}')
    assert received.headers["x-request-id"] == answer.headers["X-Request-Id"]


@pytest.mark.parametrize("method", METHODS)
def test_a_write_that_was_sent_is_never_sent_to_the_other_one(site: Site, method: str) -> None:
    """It is accepted and reset: the outcome is unknown."""
    site.standby.reset()
    write(site, method)  # leaves an idle connection, the tempting case
    site.write.received.clear()
    site.write.behaviour.hang_up = True
    assert_failure(write(site, method), 50201, "unknown")
    assert len(site.write.received) == 1
    assert site.standby.received == []
    # The failure is observed: the next write tries the other one first, unless a check has come in between.
    assert any(write(site, method).text == "write-2" for _ in range(3))


def test_while_none_is_active_writes_say_that_nothing_was_written(site: Site) -> None:
    site.write.stop()
    site.activate(None)
    throughout(lambda: write(site).json()["error_code"] == 50304, for_s=NEXT_LISTING_S, what="no write is taken")
    for method in METHODS:
        assert_failure(write(site, method), 50304, "not_written")
    site.take_over()
    until(lambda: write(site).status_code == 200, within_s=RETURN_S)


def test_a_standby_that_becomes_active_between_two_checks_gets_writes_at_once(site: Site) -> None:
    site.write.stop()
    site.activate(None)
    until(lambda: not (site.upstream_files / "write").exists(), within_s=RETURN_S)
    assert_failure(write(site), 50304, "not_written")
    site.standby.reset()  # its status is still that of the last check
    assert write(site).text == "write-2"


def test_the_highest_epoch_wins(site: Site) -> None:
    """The one before was paused and does not know yet that it is fenced."""
    site.take_over(epoch=8)
    site.internal.behaviour.body = b'{"active": true, "epoch": 7, "brokers": [], "managers": []}'
    until(lambda: write(site).text == "write-2", within_s=RETURN_S)
    throughout(lambda: write(site).text == "write-2", for_s=NEXT_LISTING_S, what="no write goes to the fenced one")


@pytest.fixture
def paused(site: Site) -> Iterator[Site]:
    """Both listeners of the active one accept connections and answer nothing."""
    for server in (site.write, site.internal):
        server.behaviour.delay_s = 12.0
    yield site
    for server in (site.write, site.internal):
        server.behaviour.delay_s = 0.0


def test_a_paused_one_is_left(paused: Site) -> None:
    site = paused
    until(lambda: not (site.upstream_files / "write").exists(), within_s=LOST_S, what="its checks fail")
    site.take_over()
    assert write(site).text == "write-2"
    until(lambda: has_no_script(site, "write_2"), within_s=RETURN_S)
    assert site.write.received == []


def test_a_paused_one_holds_up_no_more_writes_when_the_first_one_has_failed(paused: Site) -> None:
    """Nobody has taken over: it could be merely slow, until a write gets no answer."""
    site = paused
    until(lambda: not (site.upstream_files / "write").exists(), within_s=LOST_S, what="its checks fail")
    assert_failure(write(site), 50401, "unknown")
    for _ in range(3):
        started_s = time.monotonic()
        assert_failure(write(site), 50304, "not_written")
        assert time.monotonic() - started_s < 5
    assert len(site.write.received) == 1


def test_one_slow_check_is_no_reason_to_refuse_writes(site: Site) -> None:
    done = threading.Event()

    def slow_once() -> None:
        """No answer for one check, as of a process that is busy for a moment."""
        site.internal.behaviour.answer_delay_s = 0.6
        done.wait(0.9)
        site.internal.behaviour.answer_delay_s = 0.0

    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(slow_once)
        throughout(lambda: write(site).status_code == 200, for_s=3, what="writes go on")
        slow.result()


def test_one_that_answers_its_checks_too_late_keeps_its_writes_while_there_is_no_other(site: Site) -> None:
    site.internal.behaviour.answer_delay_s = 1.5
    throughout(lambda: write(site).text == "write", for_s=LOST_S, what="writes go on")
    site.take_over()
    until(lambda: has_no_script(site, "write_2"), within_s=RETURN_S)
    throughout(lambda: write(site).text == "write-2", for_s=NEXT_LISTING_S, what="only the other one gets writes")
    site.activate(None)  # and is a standby when it comes back: the slow one is fenced since then
    until(lambda: write(site).status_code == 200 and not (site.upstream_files / "write").exists(), within_s=RETURN_S)
    site.standby.stop()
    assert_failure(write(site), 50304, "not_written")


def test_lists_come_from_the_active_one(site: Site) -> None:
    moved = StandInManager("moved")
    moved.start()
    try:
        site.take_over()
        until(lambda: write(site).text == "write-2", within_s=RETURN_S)
        site.place({1: moved}, site.reads)
        site.activate(2, epoch=2)
        site.internal.behaviour.body = b'{"active": false, "epoch": null, "brokers": [], "managers": []}'
        until(lambda: site.at_broker(1).text == "moved", within_s=RETURN_S)
        throughout(lambda: site.at_broker(1).text == "moved", for_s=NEXT_LISTING_S, what="the standby is not asked")
    finally:
        moved.stop()
