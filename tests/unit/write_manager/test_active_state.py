"""What a write manager answers in each role, after a pause, and while it cannot verify that it is the active one."""

import asyncio
import logging
import math
from collections.abc import Callable, Collection
from typing import cast

import pytest
import structlog

from db.manager_lease import LeaseRenewed, ManagerLease
from myqueue.protocol.errors import ManagerUnavailable, MetadataUnavailable, MyQueueError, StandbyManager
from tests.waiting import until
from write_manager.active_state import VERIFY_PAUSE_S, ActiveState
from write_manager.manager_lease_renewal import ManagerLeaseRenewal

LOG = structlog.wrap_logger(None, wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
VERIFIED_FOR_S = 1.5


def renewed(epoch: int = 7, timeline: int = 1, *, written: str = "0/1", confirmed: bool = True) -> LeaseRenewed:
    return LeaseRenewed(epoch, timeline, written, confirmed)


class ScriptedLease:
    """Answers renewals as the test says."""

    def __init__(self) -> None:
        self.result: LeaseRenewed | None = renewed()
        self.is_away = False
        self.asked_for: list[str | None] = []
        self.expected: list[set[int]] = []
        self.released: list[set[int]] = []

    def renew(self, _epoch: int, expected: Collection[int], written: str | None) -> LeaseRenewed | None:
        self.expected.append(set(expected))
        self.asked_for.append(written)
        if self.is_away:
            raise MetadataUnavailable(outcome="not_written")
        return self.result

    def release(self, expected: Collection[int]) -> bool:
        self.released.append(set(expected))
        return True


class Manager:
    def __init__(self) -> None:
        self.now_s = 1000.0
        self.lost: list[str] = []
        self.lease = ScriptedLease()
        self.renewal = ManagerLeaseRenewal(
            cast(ManagerLease, self.lease),
            self.lost.append,
            LOG,
            interval_s=0.5,
            verified_for_s=VERIFIED_FOR_S,
            now_s=lambda: self.now_s,
        )
        self.state = ActiveState("one", self.renewal, max_pause_s=VERIFIED_FOR_S, now_s=lambda: self.now_s)

    def activate(self) -> None:
        self.renewal._renew()  # as soon as the lease is taken
        self.renewal.hold(7, 1)
        self.state.activate(7)

    def passes(self, seconds: float, *, paused: bool = False) -> None:
        """The event loop runs on meanwhile, unless the process is paused."""
        self.now_s += seconds
        if not paused:
            self.state._ticked_s = self.now_s


def play(scene: Callable[[Manager], None]) -> None:
    async def main() -> None:
        scene(Manager())

    asyncio.run(main())


def refusals(state: ActiveState) -> tuple[type[MyQueueError] | None, type[MyQueueError] | None]:
    public, inside = state.refusal(), state.internal_refusal()
    return type(public) if public else None, type(inside) if inside else None


def test_roles() -> None:
    def scene(manager: Manager) -> None:
        state = manager.state
        assert refusals(state) == (ManagerUnavailable, StandbyManager)
        assert (state.headers(), state.problem()) == ([], "standby")
        assert (state.status()["active"], state.status()["epoch"]) == (False, None)
        manager.activate()
        assert refusals(state) == (None, None)
        assert (state.headers(), state.problem()) == ([("x-myqueue-epoch", "7")], None)
        assert (state.status()["active"], state.status()["epoch"]) == (True, 7)
        state.end()
        assert refusals(state) == (ManagerUnavailable, StandbyManager)
        state.activate(8)
        assert refusals(state) == (ManagerUnavailable, StandbyManager), "never active twice"
        assert state.status()["epoch"] == 7

    play(scene)


def test_after_a_pause_nothing_is_answered_before_the_lease_was_asked_for() -> None:
    def scene(manager: Manager) -> None:
        manager.activate()
        manager.passes(1.0, paused=True)
        assert refusals(manager.state) == (None, None)
        manager.passes(10.0, paused=True)
        assert refusals(manager.state) == (ManagerUnavailable, ManagerUnavailable)
        manager.passes(0.1)
        assert not manager.state.status()["active"]
        manager.lease.is_away = True
        manager.renewal._renew()
        assert refusals(manager.state) == (None, None), "PostgreSQL is away: nobody can have taken over"
        with pytest.raises(ManagerUnavailable):
            manager.state.check_verified()

    play(scene)


def test_answers_from_memory_need_a_recent_renewal() -> None:
    def scene(manager: Manager) -> None:
        with pytest.raises(ManagerUnavailable):
            manager.state.check_verified()
        manager.activate()
        manager.passes(VERIFIED_FOR_S)
        manager.state.check_verified()
        manager.passes(0.01)
        with pytest.raises(ManagerUnavailable) as refused:
            manager.state.check_verified()
        assert refused.value.outcome == "not_written"
        manager.state.check_database()  # late, but not known to be away
        manager.lease.is_away = True
        manager.renewal._renew()
        with pytest.raises(MetadataUnavailable):
            manager.state.check_database()
        assert manager.state.status()["active"]
        assert "PostgreSQL" in str(manager.state.status()["degraded"])
        manager.lease.is_away = False
        manager.renewal._renew()
        manager.state.check_verified()
        manager.state.check_database()
        assert manager.state.status()["degraded"] is None

    play(scene)


def test_a_late_renewal_is_waited_for_and_postgresql_is_not() -> None:
    async def main() -> None:
        manager = Manager()
        manager.activate()
        manager.passes(VERIFIED_FOR_S + 0.01)
        waiting = asyncio.ensure_future(manager.state.await_verified())
        await asyncio.sleep(0)
        assert not waiting.done()
        manager.renewal._renew()
        await waiting
        manager.passes(VERIFIED_FOR_S + 0.01)
        manager.lease.is_away = True
        manager.renewal._renew()
        refused = asyncio.ensure_future(manager.state.await_verified())
        await asyncio.sleep(0)
        assert isinstance(refused.exception(), ManagerUnavailable), "at once"

    asyncio.run(main())


def test_a_renewal_that_does_not_come_is_not_waited_for_for_ever() -> None:
    async def main() -> None:
        manager = Manager()
        manager.activate()
        manager.passes(VERIFIED_FOR_S + 0.01)
        with pytest.raises(ManagerUnavailable):
            await asyncio.wait_for(manager.state.await_verified(), 10)

    asyncio.run(main())


def test_many_requests_wait_for_a_late_renewal_together() -> None:
    """It is late because the machine is busy: each request that looks for itself would make it later."""

    async def main() -> None:
        manager = Manager()
        manager.activate()
        manager.passes(VERIFIED_FOR_S + 0.01)
        waiting = [asyncio.ensure_future(manager.state.await_verified()) for _ in range(200)]
        await asyncio.sleep(0)
        looks = 0
        is_verified = manager.renewal.is_verified

        def counted() -> bool:
            nonlocal looks
            looks += 1
            return is_verified()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(manager.renewal, "is_verified", counted)
            await asyncio.sleep(5 * VERIFY_PAUSE_S)
            assert 0 < looks <= 20
        assert not any(each.done() for each in waiting)
        manager.renewal._renew()
        await asyncio.wait_for(asyncio.gather(*waiting), 10)

    asyncio.run(main())


@pytest.mark.parametrize("result", [None, renewed(epoch=8), renewed(timeline=2)])
def test_a_lost_lease_another_epoch_and_another_timeline_end_it(result: LeaseRenewed | None) -> None:
    def scene(manager: Manager) -> None:
        manager.activate()
        manager.renewal._renew()
        assert manager.lost == []
        before_s = manager.renewal.verified_s
        manager.passes(0.5)
        manager.lease.result = result
        manager.renewal._renew()
        assert len(manager.lost) == 1
        assert manager.renewal.verified_s == before_s

    play(scene)


def test_an_epoch_whose_storing_has_an_unknown_outcome_is_still_the_own_one() -> None:
    def scene(manager: Manager) -> None:
        manager.lease.is_away = True
        with pytest.raises(MetadataUnavailable):
            manager.renewal.hold(7, 1)
        manager.lease.is_away = False
        manager.renewal.hold(7, 1)
        manager.renewal._renew()
        assert manager.lease.expected == [{0, 7}, {0, 7}, {7}]
        assert manager.lost == []

    play(scene)


def test_renewals_that_no_standby_gets_verify_nothing() -> None:
    """A primary that was replaced takes them as well. The process stays active: nobody may have been promoted."""

    def scene(manager: Manager) -> None:
        manager.activate()
        manager.lease.result = renewed(written="0/5", confirmed=False)
        for _ in range(3):
            manager.passes(0.5)
            manager.renewal._renew()
        manager.state.check_verified()
        manager.passes(0.5)
        manager.renewal._renew()
        with pytest.raises(ManagerUnavailable):
            manager.state.check_verified()
        with pytest.raises(MetadataUnavailable):
            manager.state.check_database()
        assert manager.state.verified_since_s() == math.inf
        assert refusals(manager.state) == (None, None)
        assert "no standby" in str(manager.state.status()["degraded"])
        assert manager.lost == []
        assert set(manager.lease.asked_for[2:]) == {"0/1"}, "the first renewal that no standby had"
        # One that comes back after long proves that it was there then, not that no other one was active since.
        manager.passes(20)
        manager.lease.result = renewed(written="0/6")
        manager.renewal._renew()
        with pytest.raises(ManagerUnavailable):
            manager.state.check_verified()
        manager.passes(0.2)
        manager.renewal._renew()
        manager.state.check_verified()
        assert manager.lease.asked_for[-1] == "0/6"
        assert manager.state.status()["degraded"] is None

    play(scene)


def test_since_when_it_has_been_verified() -> None:
    def scene(manager: Manager) -> None:
        manager.activate()
        began_s = manager.now_s
        for _ in range(5):
            manager.passes(1.0)
            manager.renewal._renew()
        assert manager.state.verified_since_s() == began_s
        manager.passes(VERIFIED_FOR_S + 0.1)
        assert manager.state.verified_since_s() == math.inf
        manager.renewal._renew()
        assert manager.state.verified_since_s() == manager.now_s

    play(scene)


def test_a_timeline_that_began_after_the_epoch_was_taken_ends_it() -> None:
    """The lease's connection may be at the next primary already when the epoch is stored in the lease."""

    def scene(manager: Manager) -> None:
        manager.lease.result = renewed(timeline=2)
        with pytest.raises(MetadataUnavailable):
            manager.renewal.hold(7, 1)
        assert len(manager.lost) == 1

    play(scene)


def test_a_lease_that_is_taken_while_the_process_stops_is_released() -> None:
    def scene(manager: Manager) -> None:
        manager.renewal.stop()
        assert manager.lease.released == []
        manager.renewal.start()
        assert manager.lease.released == [{0}]
        assert manager.lease.expected == []

    play(scene)


def test_one_that_ceases_renews_no_more_and_releases_when_it_stops() -> None:
    def scene(manager: Manager) -> None:
        manager.renewal.start()
        until(lambda: manager.lease.expected, within_s=10, what="it renews")
        manager.renewal.cease()
        thread = manager.renewal._thread
        assert thread is not None
        thread.join(10)
        assert not thread.is_alive()
        assert manager.lease.released == []
        manager.renewal.stop()
        manager.renewal.stop()
        assert manager.lease.released == [{0}]

    play(scene)
