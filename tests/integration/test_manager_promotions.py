"""Write managers whose primary of PostgreSQL is replaced, and then resumes as if nothing had happened."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from db.manager_lease import ManagerLease
from db.migrate import migrate
from db.primary import Primary
from db.timelines import CurrentTimeline
from stack.local import Database
from tests.integration.manager_pair import STARTED_S, ManagerPair, ManagerProcess, manager_pair
from tests.integration.promotable_trio import STREAMING, PromotableTrio, promotable_trio
from tests.waiting import throughout, until

NOBODY_FOLLOWS = "no standby of PostgreSQL follows this server"


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[PromotableTrio]:
    with promotable_trio(tmp_path) as started:
        yield started


def replace_primary(trio: PromotableTrio) -> None:
    """By a standby, while it is paused; then it resumes."""
    with trio.paused("a"):
        trio.promote("b")
        trio.follow_primary("c")
        until(lambda: trio.value("b", STREAMING) == 1, within_s=20, what="the other standby follows")
    until(lambda: not trio.value("a", "SELECT pg_is_in_recovery()"), within_s=10, what="the old primary answers")


def started_pair(trio: PromotableTrio, pair: ManagerPair) -> tuple[ManagerProcess, ManagerProcess]:
    """The active one and the standby."""
    active, standby = pair.add("write-manager-1"), pair.add("write-manager-2")
    active.start()
    active.await_active(within_s=STARTED_S)
    standby.start()
    return active, standby


def database(trio: PromotableTrio, *names: str) -> Database:
    return Database(",".join(trio.address(*names).hosts), "myqueue", "trusted", "myqueue")


@pytest.mark.slow
def test_renewals_leave_a_replaced_primary(trio: PromotableTrio) -> None:
    current = CurrentTimeline()
    with (
        closing(Primary(trio.address(), "one", on_fenced=lambda: None, current=current)) as primary,
        closing(ManagerLease(trio.address(), "one", current=current)) as lease,
        closing(ManagerLease(trio.address("a"), "one")) as isolated,
    ):
        migrate(primary.engine)
        look = lease.look()
        assert look is not None
        assert lease.take(look.record)
        for each in (lease, isolated):
            renewed = each.renew(0, {0})
            assert renewed is not None
            assert (renewed.timeline, renewed.confirmed) == (1, True)
        replace_primary(trio)
        taken = isolated.renew(0, {0})
        assert taken is not None, "the old primary takes renewals"
        late = isolated.renew(0, {0}, taken.written)
        assert late is not None
        assert (late.timeline, late.confirmed) == (1, False), "but nobody gets them"
        old = isolated.look()
        assert old is not None
        assert not old.has_standby
        primary.servers.probe()
        renewed = lease.renew(0, {0})
        assert renewed is not None
        assert renewed.timeline == 2


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_a_promotion_ends_the_active_one_and_the_standby_goes_on_there(trio: PromotableTrio, tmp_path: Path) -> None:
    with manager_pair(database(trio), tmp_path) as pair:
        active, standby = started_pair(trio, pair)
        replace_primary(trio)
        assert active.exit_status(within_s=20) == 0
        assert "PostgreSQL is on timeline 2 now" in active.log
        standby.await_active(within_s=20)
        status = standby.status()
        assert status is not None
        assert status["epoch"] == 2
        active.start()
        throughout(lambda: standby.is_active() and active.is_standby(), for_s=5, what="nobody goes back")


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_those_that_reach_the_replaced_primary_only_do_not_go_on(trio: PromotableTrio, tmp_path: Path) -> None:
    """On the wrong side of a cut network: what only memory backs is refused, and the lease is not taken there."""
    with manager_pair(database(trio, "a"), tmp_path) as pair:
        active, standby = started_pair(trio, pair)
        replace_primary(trio)

        def is_degraded() -> bool:
            status = active.status()
            return status is not None and "no standby of PostgreSQL" in str(status["degraded"])

        until(is_degraded, within_s=20, what="it cannot verify any more that it is the active one")
        throughout(lambda: active.is_active() and is_degraded(), for_s=3, what="it goes on with what is sure")
        active.kill()
        throughout(standby.is_standby, for_s=6, what="the other one does not take the lease there")
        assert standby.log.count(NOBODY_FOLLOWS) == 1, "one line, not one for each look"
