"""What is said to be degraded, from the states of databases and write managers."""

import json

import pytest

from db.servers import DatabaseServer
from db.timelines import CurrentTimeline
from myqueue.protocol.answers import ClusterDatabase, ClusterWriteManager
from myqueue.protocol.errors import MyQueueError, RouteNotFound, Unauthorized, Unavailable
from read_manager.cluster import database, degraded, write_manager
from service.active_manager import Result, status_in
from service.calls import CallResponse, ConnectionRefused, NoAnswer

PRIMARY = ClusterDatabase(role="primary", state="active", timeline=1, problem=None)
STANDBY = ClusterDatabase(role="standby", state="active", timeline=1, problem=None)
AWAY = ClusterDatabase(role=None, state="inactive", timeline=None, problem="does not answer")
ACTIVE = ClusterWriteManager(name="write-manager-1", state="active", epoch=7)
STANDING_BY = ClusterWriteManager(name="write-manager-2", state="standby", epoch=None)
BUSY = ACTIVE.model_copy(update={"problem": "PostgreSQL has not answered for 4 s"})
GONE = ClusterWriteManager(name=None, state="inactive", epoch=None)
TAKEN_OVER = ClusterWriteManager(name="write-manager-2", state="active", epoch=8)

ALL = [PRIMARY, STANDBY, STANDBY]
BOTH = [ACTIVE, STANDING_BY]


def body(**status: object) -> CallResponse:
    return CallResponse(200, {}, json.dumps(status).encode())


def refused(error: MyQueueError) -> CallResponse:
    return CallResponse(error.http_status, {}, json.dumps(error.to_body(None)).encode())


@pytest.mark.parametrize(
    ("databases", "write_managers", "age_s", "said"),
    [
        (ALL, BOTH, None, []),
        (ALL, [ACTIVE], None, []),
        ([PRIMARY, STANDBY, AWAY], BOTH, None, ["PostgreSQL server: does not answer"]),
        ([STANDBY, STANDBY, AWAY], BOTH, None, ["PostgreSQL has no primary", "PostgreSQL server: does not answer"]),
        (ALL, BOTH, 4.2, ["the catalog cannot be read: brokers and read managers are as they were 4 s ago"]),
        (ALL, [ACTIVE, GONE], None, ["no write manager stands by"]),
        (ALL, [STANDING_BY, GONE], None, ["no write manager is active"]),
        (ALL, [BUSY, STANDING_BY], None, ["active write manager: PostgreSQL has not answered for 4 s"]),
        (ALL, [BUSY, TAKEN_OVER], None, ["write-manager-1 does not know that another one has taken over"]),
        (ALL, [TAKEN_OVER, ACTIVE], None, ["write-manager-1 does not know that another one has taken over"]),
        ([STANDBY, STANDBY], [BUSY, STANDING_BY], None, ["PostgreSQL has no primary"]),
        (
            [PRIMARY.model_copy(update={"problem": "no standby confirms its commits"})],
            BOTH,
            None,
            ["PostgreSQL primary: no standby confirms its commits"],
        ),
    ],
)
def test_what_is_degraded(
    databases: list[ClusterDatabase], write_managers: list[ClusterWriteManager], age_s: float | None, said: list[str]
) -> None:
    found = degraded(databases, write_managers, age_s)
    assert len(found) == len(said), found
    for what, words in zip(found, said, strict=True):
        assert what.startswith(words)


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        (body(name="write-manager-1", active=True, epoch=7, degraded=None), ACTIVE),
        (body(name="write-manager-1", active=True, epoch=7, degraded=BUSY.problem), BUSY),
        (body(name="write-manager-2", active=False, epoch=None, degraded=None), STANDING_BY),
        (refused(RouteNotFound()), ClusterWriteManager(name=None, state="active", epoch=None)),
        (refused(Unauthorized()), GONE),
        (refused(Unavailable()), GONE),
        (ConnectionRefused(), GONE),
        (NoAnswer(), GONE),
        (CallResponse(200, {}, b"<html>"), GONE),
    ],
)
def test_a_write_manager_is_what_it_says(result: Result, shown: ClusterWriteManager) -> None:
    """Only one that does not know the question is of a release that had no standby."""
    assert write_manager(status_in(result)) == shown


def test_a_replaced_primary_counts_for_nothing() -> None:
    current = CurrentTimeline()
    server = DatabaseServer("127.0.0.1:1", 5.0, current)
    assert database(server, 1) == AWAY
    server.learn(True, 1, 0, None, 1)
    assert database(server, current.highest) == PRIMARY
    current.seen(2)
    shown = database(server, current.highest)
    assert (shown.role, shown.state) == (None, "inactive")
    assert shown.problem is not None
    server.hung()
    assert database(server, current.highest) == AWAY
