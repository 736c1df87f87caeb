"""Read managers come, go and are forgotten by their heartbeats alone."""

from hypothesis import given
from hypothesis import strategies as st

from write_manager.read_managers import FORGOTTEN_AFTER_TTLS, ReadManagers

TTL_S = 5.0
A, B = "http://10.0.0.1:5001", "http://10.0.0.2:5001"


def endpoints(managers: ReadManagers, now_s: float) -> list[str]:
    return [manager.endpoint for manager in managers.alive(now_s)]


def sweep(managers: ReadManagers, now_s: float, *, stamp: bool = False) -> dict[str, bool]:
    """What a sweep stores, and that it did."""
    changes = managers.to_store(now_s, stamp=stamp)
    managers.stored(changes, managers.to_forget(now_s))
    return {manager.name: manager.active for manager in changes}


def test_one_is_listed_while_it_is_heard_of() -> None:
    managers = ReadManagers(TTL_S)
    managers.heard("b", B, 0.0)
    managers.heard("a", A, 1.0)
    assert endpoints(managers, 5.0) == [A, B]
    assert endpoints(managers, 5.5) == [A]
    assert managers.heard("b", B, 6.0) is None


def test_one_that_moves_is_followed_and_noticed() -> None:
    managers = ReadManagers(TTL_S)
    assert managers.heard("a", A, 0.0) is None
    assert managers.heard("a", B, 1.0) == A
    assert endpoints(managers, 1.0) == [B]
    assert managers.heard("a", A, 10.0) is None, "the other one was missed before"


def test_changes_are_stored_once_and_stamps_only_for_those_that_are_there() -> None:
    managers = ReadManagers(TTL_S)
    managers.heard("a", A, 0.0)
    managers.heard("b", B, 4.0)
    assert sweep(managers, 4.0) == {"a": True, "b": True}
    assert sweep(managers, 4.5) == {}
    assert sweep(managers, 6.0, stamp=True) == {"a": False, "b": True}
    assert sweep(managers, 7.0, stamp=True) == {"b": True}
    assert [manager.heard_s for manager in managers.to_store(7.0, stamp=True)] == [4.0], "the time it was really heard"


def test_one_that_says_goodbye_is_gone_at_once() -> None:
    managers = ReadManagers(TTL_S)
    managers.heard("a", A, 0.0)
    assert sweep(managers, 0.0) == {"a": True}
    managers.left("a", 1.0)
    managers.left("nobody", 1.0)
    assert endpoints(managers, 1.0) == []
    assert sweep(managers, 1.0) == {"a": False}
    managers.heard("a", A, 2.0)
    assert endpoints(managers, 2.0) == [A]


def test_after_a_takeover_the_active_ones_get_a_fresh_time_to_live() -> None:
    managers = ReadManagers(TTL_S)
    managers.heard("c", B, 100.0)
    managers.load([("a", A, True), ("b", B, False), ("c", A, True)], 100.0)
    assert endpoints(managers, 104.0) == [A, B], "what was heard already is newer than what is stored"
    assert sweep(managers, 106.0) == {"a": False}, "c was never stored as active by this process"
    assert managers.to_forget(100.0 + FORGOTTEN_AFTER_TTLS * TTL_S) == ["b"]
    sweep(managers, 101.0 + FORGOTTEN_AFTER_TTLS * TTL_S)
    managers.load([], 200.0)
    assert endpoints(managers, 200.0) == []


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["heard", "left", "sweep"]), st.floats(0, 20))))
def test_what_is_stored_is_what_is_told(steps: list[tuple[str, str, float]]) -> None:
    """After a sweep the stored status and the list for the load balancer agree; nobody silent for long is known."""
    managers, stored, now_s = ReadManagers(TTL_S), dict[str, bool](), 0.0
    for name, step, seconds in steps:
        now_s += seconds
        if step == "heard":
            managers.heard(name, A, now_s)
        elif step == "left":
            managers.left(name, now_s)
        forgotten = managers.to_forget(now_s)
        stored |= sweep(managers, now_s, stamp=step == "sweep")
        for gone in forgotten:
            del stored[gone]
        assert {name for name, active in stored.items() if active} == {m.name for m in managers.alive(now_s)}
