"""Read managers come, go and are forgotten by their heartbeats alone."""

from hypothesis import given
from hypothesis import strategies as st

from write_manager.read_managers import FORGOTTEN_AFTER_TTLS, ReadManagers

TTL_S = 5.0
A, B = "http://10.0.0.1:5001", "http://10.0.0.2:5001"


class Swept:
    """Read managers that are judged every second, and everything they say is stored."""

    def __init__(self) -> None:
        self.managers = ReadManagers(TTL_S)
        self.now_s = 0.0
        self.stored: dict[str, bool] = {}

    def until(self, now_s: float, *, stamp: bool = False) -> dict[str, bool]:
        """What is stored at that time."""
        while self.now_s < now_s:
            self.now_s = min(now_s, self.now_s + 1)
            self.managers.sweep(self.now_s)
        changes = self.managers.take_changes(now_s, stamp=stamp)
        self.managers.changes_stored(changes)
        statuses = {manager.name: manager.active for manager in changes.changed}
        self.stored |= statuses
        for name in changes.forgotten:
            del self.stored[name]
        return statuses

    def endpoints(self) -> list[str]:
        return [manager.endpoint for manager in self.managers.active()]


def test_one_is_listed_while_it_is_heard_of() -> None:
    swept = Swept()
    swept.managers.heartbeat("b", B, 0.0)
    swept.until(1.0)
    swept.managers.heartbeat("a", A, 1.0)
    swept.until(5.0)
    assert swept.endpoints() == [A, B]
    swept.until(5.5)
    assert swept.endpoints() == [A]
    assert swept.managers.heartbeat("b", B, 6.0) is None


def test_one_that_moves_is_followed_noticed_and_stored() -> None:
    swept = Swept()
    assert swept.managers.heartbeat("a", A, 0.0) is None
    assert swept.until(1.0) == {"a": True}
    assert swept.managers.heartbeat("a", B, 1.0) == A
    assert swept.endpoints() == [B]
    assert swept.until(2.0) == {"a": True}
    swept.until(10.0)
    assert swept.managers.heartbeat("a", A, 10.0) is None, "the other one was missed before"


def test_changes_are_stored_once_and_stamps_only_for_those_that_are_there() -> None:
    swept = Swept()
    swept.managers.heartbeat("a", A, 0.0)
    swept.until(4.0)
    swept.managers.heartbeat("b", B, 4.0)
    assert swept.until(4.0) == {"b": True}
    assert swept.until(4.5) == {}
    assert swept.until(6.0, stamp=True) == {"a": False, "b": True}
    assert swept.until(7.0, stamp=True) == {"b": True}
    stamped = swept.managers.take_changes(7.0, stamp=True).changed
    assert [manager.last_heartbeat_s for manager in stamped] == [4.0], "the time of its heartbeat"


def test_what_may_not_have_been_stored_is_stored_again() -> None:
    """It died, that had an unknown outcome, and it came back: PostgreSQL may say that it is dead."""
    swept = Swept()
    swept.managers.heartbeat("a", A, 0.0)
    swept.until(1.0)
    swept.managers.leave("a", 1.0)
    assert swept.managers.take_changes(1.0, stamp=False), "and never known to be stored"
    swept.managers.heartbeat("a", A, 2.0)
    assert swept.until(2.0) == {"a": True}


def test_one_that_is_heard_of_while_it_is_forgotten_is_stored_again() -> None:
    swept = Swept()
    swept.managers.heartbeat("a", A, 0.0)
    swept.until(1.0)
    swept.managers.leave("a", 1.0)
    swept.until(2.0)
    long_s = 3.0 + FORGOTTEN_AFTER_TTLS * TTL_S
    changes = swept.managers.take_changes(long_s, stamp=False)
    assert changes.forgotten == ["a"]
    swept.managers.heartbeat("a", A, long_s)
    swept.managers.changes_stored(changes)
    assert swept.endpoints() == [A]
    assert [manager.name for manager in swept.managers.take_changes(long_s, stamp=False).changed] == ["a"]


def test_one_that_says_goodbye_is_gone_at_once() -> None:
    swept = Swept()
    swept.managers.heartbeat("a", A, 0.0)
    assert swept.until(1.0) == {"a": True}
    swept.managers.leave("a", 1.0)
    swept.managers.leave("nobody", 1.0)
    assert swept.endpoints() == []
    assert swept.until(2.0) == {"a": False}
    swept.managers.heartbeat("a", A, 2.0)
    assert swept.endpoints() == [A]


def test_after_a_takeover_the_active_ones_get_a_fresh_time_to_live() -> None:
    swept = Swept()
    swept.now_s = 100.0
    swept.managers.heartbeat("c", B, 100.0)
    swept.managers.load([("a", A, True), ("b", B, False), ("c", A, True)], 100.0)
    swept.stored = {"a": True, "b": False, "c": True}
    swept.until(104.0)
    assert swept.endpoints() == [A, B], "what was heard already is newer than what is stored"
    assert swept.until(106.0) == {"a": False, "c": False}
    swept.until(101.0 + FORGOTTEN_AFTER_TTLS * TTL_S)
    assert swept.stored == {}


def test_an_activation_that_is_tried_again_gives_a_fresh_time_to_live_again() -> None:
    swept = Swept()
    swept.managers.load([("a", A, True)], 100.0)
    swept.managers.load([("a", A, True)], 120.0)
    swept.now_s = 120.0
    swept.until(124.0)
    assert swept.endpoints() == [A]


def test_a_paused_process_misses_nobody() -> None:
    """Neither at the sweep after the pause nor when the load balancer asks before it."""
    swept = Swept()
    swept.managers.heartbeat("a", A, 0.0)
    swept.until(1.0)
    assert swept.endpoints() == [A]
    swept.managers.sweep(20.0)
    assert swept.endpoints() == [A]
    swept.now_s = 20.0
    swept.until(25.0)
    assert swept.endpoints() == [A]
    swept.until(26.0)
    assert swept.endpoints() == []


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["heard", "left", "sweep"]), st.floats(0, 20))))
def test_what_is_stored_is_what_is_told(steps: list[tuple[str, str, float]]) -> None:
    """The stored status and the list for the load balancer agree; nobody silent for long is known."""
    swept = Swept()
    for name, step, seconds in steps:
        swept.until(swept.now_s + seconds)
        if step == "heard":
            swept.managers.heartbeat(name, A, swept.now_s)
        elif step == "left":
            swept.managers.leave(name, swept.now_s)
        swept.until(swept.now_s, stamp=step == "sweep")
        assert {n for n, active in swept.stored.items() if active} == {m.name for m in swept.managers.active()}
