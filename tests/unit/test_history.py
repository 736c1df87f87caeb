"""The history checker must be able to fail: one planted violation for each invariant."""

import math
from collections.abc import Callable

import pytest

from tests import history
from tests.history import Event, History


def produced(sequence: int, offset: int, kind: str = "ok", value: str | None = None) -> list[Event]:
    base: Event = {
        "f": "produce",
        "process": "p0",
        "sequence": sequence,
        "value": f"p0-{sequence}" if value is None else value,
        "s": float(sequence),
    }
    place = {"partition": 0, "offset": offset} if kind == "ok" else {}
    return [{**base, "type": "invoke"}, {**base, "type": kind, **place}]


def read(f: str, sequence: int, offset: int, process: str = "reader") -> Event:
    return {
        "f": f,
        "type": "ok",
        "process": process,
        "value": f"p0-{sequence}",
        "partition": 0,
        "offset": offset,
        "s": 0.0,
    }


def size(reported: int, process: str = "s0") -> list[Event]:
    base: Event = {"f": "size", "process": process, "s": 0.0}
    return [{**base, "type": "invoke", "value": None}, {**base, "type": "ok", "value": reported}]


SOUND = [
    *produced(0, 0),
    *produced(1, -1, "fail"),
    *produced(2, -1, "info"),
    *produced(2, 1),
    *produced(3, -1, "info"),
    *size(2),
    *size(3),
    read("consume", 0, 0),
    read("consume", 2, 1),
    *(read("drain", sequence, offset, "drain") for sequence, offset in ((0, 0), (2, 1), (3, 2))),
]


def killed(process: str, s: float = 1.0, f: str = "kill") -> Event:
    return {"f": f, "type": "info", "process": process, "value": None, "s": s}


def registered(name: str, number: int) -> Event:
    return {"f": "register", "type": "ok", "process": name, "value": number, "s": 0.0}


def test_a_sound_history_has_no_violations() -> None:
    assert history.violations(SOUND) == {}
    in_container = killed("myqueue-test_write-manager-2_1")
    others = (killed("write-manager-2", f="pause"), killed("postgres-1", f="erase"))
    for fault in (killed("write-manager-1"), in_container, *others):
        repeated = [*SOUND, fault, read("consume", 0, 0), read("consume", 2, 1)]
        assert history.violations(repeated) == {}, "unreported deliveries may come once more"
        assert history.came_again(repeated) == 2
    assert history.violations([*SOUND, registered("a", 1), registered("b", 2), registered("a", 1)]) == {}


PLANTED: list[tuple[Callable[[History], list[str]], list[Event]]] = [
    (history.lost_acknowledged, [*SOUND, *produced(4, 3)]),
    (history.changed_places, [*SOUND, read("consume", 0, 2, "another")]),
    (history.refused_but_written, [*SOUND, read("drain", 1, 3, "drain")]),
    (history.written_twice, [*SOUND, read("drain", 3, 3, "drain")]),
    (history.out_of_order, [*SOUND, *produced(5, 0, value="late")]),
    (history.cursor_jumps, [*SOUND, read("consume", 0, 0)]),
    (history.cursor_jumps, [*SOUND, read("consume", 5, 3)]),
    (history.cursor_jumps, [*SOUND, killed("broker-1"), read("consume", 0, 0)]),
    (history.cursor_jumps, [*SOUND, killed("myqueue-test_broker-1_1"), read("consume", 0, 0)]),
    (history.cursor_jumps, [*SOUND, killed("read-manager-1", s=9.0), read("consume", 0, 0)]),
    (history.cursor_jumps, [*SOUND, killed("write-manager-1"), *[read("consume", 0, 0)] * 2]),
    (history.cursor_jumps, [*SOUND, killed("write-manager-1"), read("consume", 5, 3)]),
    (history.cursor_jumps, [*SOUND, killed("write-manager-1", f="pause"), read("consume", 5, 3)]),
    (history.cursor_jumps, [*SOUND, killed("postgres-1", f="erase"), read("consume", 5, 3)]),
    (history.cursor_jumps, [*SOUND, killed("broker-1", f="pause"), read("consume", 0, 0)]),
    (history.gaps, [*SOUND, read("drain", 5, 4, "drain")]),
    (history.invented, [*SOUND, read("drain", 9, 3, "drain")]),
    (history.overtaken, [*SOUND, *produced(6, 0, value="by a leader of an old term")]),
    (history.stale_sizes, [*SOUND, *size(2)]),
    (history.stale_sizes, [*SOUND, *produced(4, 3), *size(3)]),
    (history.given_twice, [*SOUND, registered("a", 1), registered("b", 1)]),
    (history.given_twice, [*SOUND, registered("a", 1), registered("a", 2)]),
]


@pytest.mark.parametrize(("invariant", "planted"), PLANTED, ids=[invariant.__name__ for invariant, _ in PLANTED])
def test_a_planted_violation_is_found(invariant: Callable[[History], list[str]], planted: list[Event]) -> None:
    assert invariant(SOUND) == []
    assert invariant(planted)
    assert invariant.__name__ in history.violations(planted)


def test_the_longest_gap() -> None:
    assert history.longest_gap_s([*produced(0, 0), *produced(1, 1), *produced(9, 2)], "produce") == 8.0


def test_outages() -> None:
    """From the last success before a fault to the next one; one that never ends is endless."""
    kills = [{"f": "kill", "type": "info", "process": "b", "value": None, "s": s} for s in (1.5, 4.5, 20.0)]
    events = [*produced(0, 0), *produced(1, 1), *produced(4, 2), *produced(5, 3), *produced(6, 4), *kills]
    assert history.outages_s(events, "kill") == [3.0, 1.0, math.inf]
    ids = [{**registered("a", 1), "s": 1.0}, {**registered("b", 2), "s": 4.0}]
    assert history.outages_s([*events, *ids], "kill", of="register") == [3.0, math.inf, math.inf]


def test_refusals() -> None:
    refused = [{**event, "why": "503 50306"} for event in produced(0, 0, "fail") if event["type"] == "fail"]
    assert history.refusals([*refused, *produced(1, 0), *refused]) == {"produce 503 50306": 2}
