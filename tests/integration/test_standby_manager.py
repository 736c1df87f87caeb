"""Two write managers on one database: one is active, the other takes over from it, and nobody else."""

import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import requests

from db.timeouts import time_limit
from myqueue.protocol import http_headers, internal
from stack.local import LocalStack
from tests.integration.manager_pair import STARTED_S, ManagerPair, ManagerProcess, manager_pair
from tests.integration.postgres_servers import as_admin, as_manager, hanging
from tests.waiting import throughout, until

SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE '{name} %'"


@pytest.fixture
def pair(trio: LocalStack, tmp_path: Path) -> Iterator[ManagerPair]:
    with manager_pair(trio.database(), tmp_path) as made:
        yield made


@pytest.fixture
def two(pair: ManagerPair) -> tuple[ManagerProcess, ManagerProcess]:
    """The active one and the standby."""
    managers = [pair.add("write-manager-1"), pair.add("write-manager-2")]
    for manager in managers:
        manager.launch()
    until(lambda: all(manager.status() for manager in managers), within_s=STARTED_S, what="both answer")
    return roles(*managers)


def roles(one: ManagerProcess, other: ManagerProcess) -> tuple[ManagerProcess, ManagerProcess]:
    """The active one and the standby."""
    active = until(lambda: next((each for each in (one, other) if each.is_active()), None), within_s=STARTED_S)
    return active, other if active is one else one


def epoch_of(manager: ManagerProcess) -> int:
    status = manager.status()
    assert status is not None
    assert status["epoch"] is not None
    return status["epoch"]


def assert_standby(manager: ManagerProcess) -> None:
    assert manager.status() == {
        "status": "success",
        "name": manager.name,
        "active": False,
        "epoch": None,
        "degraded": None,
    }
    assert not manager.is_public()
    refused = manager.ask(internal.CATALOG_TOPICS)
    assert (refused.status_code, refused.json()["error_code"]) == (503, 50306)
    assert refused.headers["Retry-After"] == "1"
    assert http_headers.EPOCH not in refused.headers
    assert requests.get(manager.internal_url + "/healthz", timeout=2).status_code == 200
    ready = requests.get(manager.internal_url + "/readyz", timeout=2)
    assert (ready.status_code, ready.json()["checks"]["active"]) == (503, "standby")


def test_of_two_that_start_on_an_empty_database_one_is_active(trio: LocalStack, pair: ManagerPair) -> None:
    with time_limit(30, blames_server=False), closing(as_manager(trio)) as connection:
        connection.cursor().execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    one, other = pair.add("write-manager-1"), pair.add("write-manager-2")
    one.launch()
    other.launch()
    until(lambda: one.status() and other.status(), within_s=STARTED_S, what="both answer")
    active, standby = roles(one, other)
    throughout(lambda: active.is_active() and standby.is_standby(), for_s=1.5, what="they stay what they are")
    assert_standby(standby)
    epoch = str(epoch_of(active))
    for answer in (
        active.ask(internal.CATALOG_TOPICS),
        active.ask(internal.BROKER_TOPICS, {"not": "JSON of that route"}),
        active.ask(internal.InternalRoute("none", "GET", "/internal/nowhere")),
        requests.get(active.internal_url + internal.CATALOG_TOPICS.path, timeout=2),  # without the secret
    ):
        assert answer.headers[http_headers.EPOCH] == epoch, answer.text
    assert http_headers.EPOCH not in requests.get(active.url + "/healthz", timeout=2).headers
    standby.signal(signal.SIGTERM)
    stopped_s = time.monotonic()
    assert standby.exit_status(within_s=10) == 0
    print(f"exit of a standby: {time.monotonic() - stopped_s:.2f} s")
    assert standby.log.count(f"{active.name} holds the lease") == 1, "one line, not one for each look"
    assert '"event": "started"' not in standby.log
    throughout(active.is_active, for_s=1, what="a standby that stops releases nothing")


def test_a_takeover_after_a_kill(trio: LocalStack, two: tuple[ManagerProcess, ManagerProcess]) -> None:
    active, standby = two
    before = epoch_of(active)
    active.kill()
    took_s = standby.await_active(within_s=15)
    print(f"takeover after a kill: {took_s:.2f} s")
    assert took_s < 10
    assert epoch_of(standby) > before
    # It is the only one from now on. Started again, it need not wait for itself.
    before = epoch_of(standby)
    standby.kill()
    standby.launch()
    standby.await_active(within_s=STARTED_S)
    assert epoch_of(standby) == before + 1
    assert '"holder_was_silent_s": 0.0' in standby.log


def test_a_handover(trio: LocalStack, two: tuple[ManagerProcess, ManagerProcess]) -> None:
    active, standby = two
    active.signal(signal.SIGTERM)
    until(lambda: not active.is_public(), within_s=10, what="it refuses connections", pause_s=0.01)
    took_s = standby.await_active(within_s=15)
    print(f"handover: {took_s:.2f} s")
    assert took_s < 10
    assert active.exit_status(within_s=10) == 0
    assert '"holder_was_silent_s": null' in standby.log, "the lease was released: nobody waited for its end"
    standby.signal(signal.SIGTERM)  # and one that has just taken over
    assert standby.exit_status(within_s=10) == 0


@pytest.mark.slow
def test_a_resumed_write_manager_refuses_and_exits(two: tuple[ManagerProcess, ManagerProcess]) -> None:
    active, standby = two
    paused = active.process
    assert paused is not None
    active.signal(signal.SIGSTOP)
    took_s = standby.await_active(within_s=15)
    print(f"takeover after a pause: {took_s:.2f} s")
    assert took_s < 8
    throughout(standby.is_active, for_s=10 - took_s, what="the successor is active")
    active.signal(signal.SIGCONT)
    said = set()
    while paused.poll() is None:
        try:
            said.add(active.ask(internal.CATALOG_TOPICS, timeout_s=5).status_code)
        except requests.RequestException:
            said.add(0)
    assert said <= {503, 0}
    assert active.exit_status(within_s=10) == 0
    assert standby.is_active()
    active.start()
    assert_standby(active)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["hangs", "restarts"])
def test_nobody_takes_over_while_postgres_is_away(
    trio: LocalStack, two: tuple[ManagerProcess, ManagerProcess], fault: str
) -> None:
    active, standby = two
    epoch = epoch_of(active)

    def degraded() -> bool:
        status = active.status()
        return status is not None and bool(status["degraded"])

    if fault == "hangs":
        with hanging(trio, "postgres-1"):
            until(degraded, within_s=10, what="it says what it has to do without")
            throughout(active.is_active, for_s=5, what="the holder goes on")
    else:
        trio.stop("postgres-1")
        try:
            until(degraded, within_s=10, what="it says what it has to do without")
            throughout(active.is_active, for_s=5, what="the holder goes on")
            unknown = requests.delete(active.url + "/v1/topics/unknown", timeout=5)
            assert (unknown.status_code, unknown.json()["error_code"]) == (503, 50303)
        finally:
            trio.start("postgres-1")
    until(lambda: not degraded(), within_s=15, what="it renews again")
    throughout(lambda: active.is_active() and standby.is_standby(), for_s=4, what="nobody has taken over")
    assert epoch_of(active) == epoch


@pytest.mark.slow
def test_a_namesake_stays_a_standby(trio: LocalStack, pair: ManagerPair) -> None:
    first, second = pair.add("write-manager-1"), pair.add("write-manager-1")
    first.start()
    first.await_active(within_s=20)
    second.start()
    throughout(lambda: first.is_active() and second.is_standby(), for_s=5, what="they do not fence each other")
    assert "give each its own" in second.log
    first.signal(signal.SIGSTOP)
    second.await_active(within_s=10)
    first.signal(signal.SIGCONT)
    first.exit_status(within_s=10)
    assert as_admin(trio, "postgres-1", SESSIONS.format(name="write-manager-1"))[0][0] > 0
