"""Which server of the trio is connected to next."""

import math
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import psycopg2
import pytest
from pydantic import SecretStr

from db import servers as database_servers
from db.servers import DETACHED_AFTER_S, DatabaseServer, DatabaseServers
from db.settings import DatabaseAddress
from db.timelines import CurrentTimeline

TIMEOUT_S = 0.2


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[socket.socket]]:
    """Three servers that accept connections and say nothing."""
    monkeypatch.setattr(database_servers, "CONNECT_TIMEOUT_S", TIMEOUT_S)
    with ExitStack() as opened:
        yield [opened.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]


def servers_of(silent: list[socket.socket], avoid_s: float = 60, *, spread: bool = False) -> DatabaseServers:
    addresses = [f"127.0.0.1:{server.getsockname()[1]}" for server in silent]
    address = DatabaseAddress(hosts=addresses, user="u", password=SecretStr(""), name="d", spread=spread)
    return DatabaseServers(address, "standby", "test", avoid_s=avoid_s)


def tried(silent: list[socket.socket], servers: DatabaseServers) -> list[bool]:
    """Which of them got a connection."""
    with pytest.raises(psycopg2.OperationalError):
        servers.connect()
    found = []
    for server in silent:
        server.settimeout(0.01)
        try:
            server.accept()[0].close()
        except TimeoutError:
            found.append(False)
        else:
            found.append(True)
    return found


def test_each_server_has_its_own_time_and_one_that_hangs_is_not_waited_for_again(silent: list[socket.socket]) -> None:
    servers = servers_of(silent)
    assert tried(silent, servers) == [True, True, True]
    started_s = time.monotonic()
    assert tried(silent, servers) == [False, False, False]
    assert time.monotonic() - started_s < 3 * TIMEOUT_S + 1


def test_one_that_hung_is_tried_again_after_a_while(silent: list[socket.socket]) -> None:
    servers = servers_of(silent, avoid_s=0)
    assert tried(silent, servers) == [True, True, True]
    assert tried(silent, servers) == [True, True, True]


@pytest.mark.parametrize("spread", [False, True])
def test_the_primary_comes_last_and_those_that_failed_after_it(silent: list[socket.socket], spread: bool) -> None:
    servers = servers_of(silent, spread=spread)
    first, second, third = servers.servers
    first.learn(True, 1, 0, None, 1)
    second.learn(False, 1, 0, 1, None)
    assert servers._in_order()[-1] is first
    third.failed_s = time.monotonic()
    assert servers._in_order() == [second, first, third]
    assert servers._has_better(first)
    assert not servers._has_better(second)
    third.failed_s = -math.inf
    assert servers._has_better(third) is not spread


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def server(current: CurrentTimeline, clock: Clock) -> DatabaseServer:
    return DatabaseServer("127.0.0.1:1", 5.0, current, clock)


def test_a_primary_is_refused_once_a_higher_timeline_is_seen_anywhere() -> None:
    current, clock = CurrentTimeline(), Clock()
    old, standby = server(current, clock), server(current, clock)
    old.learn(True, 1, 500, None, 1)
    assert not old.is_replaced
    standby.learn(False, 2, 300, 2, None)
    assert old.is_replaced
    assert not standby.is_replaced
    old.learn(False, 2, 400, 2, None)  # it was rewound, and follows the new one
    assert not old.is_replaced


def test_a_standby_is_detached_when_it_has_not_streamed_the_current_timeline_for_a_while() -> None:
    current, clock = CurrentTimeline(), Clock()
    seen = server(current, clock)
    seen.learn(False, 1, 500, 1, None)
    clock.now_s += 60
    assert not seen.is_detached, "nothing was seen of it meanwhile: the probe may have been late"
    seen.learn(False, 1, 500, None, None)
    assert seen.is_detached
    seen.learn(False, 1, 500, 1, None)
    assert not seen.is_detached
    current.seen(2)
    assert not seen.is_detached, "it gets time to follow"
    clock.now_s += DETACHED_AFTER_S
    assert seen.is_detached
    seen.learn(False, 2, 500, 2, None)
    assert not seen.is_detached


def test_a_standby_that_was_never_seen_streaming_gets_as_long() -> None:
    clock = Clock()
    seen = server(CurrentTimeline(), clock)
    seen.learn(False, 1, 500, None, None)
    assert not seen.is_detached
    clock.now_s += DETACHED_AFTER_S
    assert seen.is_detached
