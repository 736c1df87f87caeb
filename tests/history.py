"""Judges what clients saw: pure functions over a history of invoke / ok / fail / info, each naming every violation.

A history is a list of JSON objects, one a line. An operation is one value to produce or one message to consume; its
attempts share the value. `fail` means reported as not written; `info` means nobody knows: a timeout, a reset, or an
answer that says so.

    {"f": "produce", "type": "invoke", "process": "p0", "sequence": 7, "value": "p0-7", "s": 12.3}
    {"f": "produce", "type": "ok", "process": "p0", "sequence": 7, "value": "p0-7", "partition": 1, "offset": 40, ...}
    {"f": "consume", "type": "ok", "process": "c0", "value": "p0-7", "partition": 1, "offset": 40, "s": 12.9}
    {"f": "drain", "type": "ok", "process": "d0", ...}   like consume, after all is healed: the whole log from its start
"""

import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

Event = dict[str, Any]
History = Sequence[Event]


def load(path: Path) -> list[Event]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _of(history: History, f: str, kind: str) -> list[Event]:
    return [event for event in history if event["f"] == f and event["type"] == kind]


def _drained(history: History) -> list[Event]:
    return _of(history, "drain", "ok")


def _read(history: History) -> list[Event]:
    return _of(history, "consume", "ok") + _drained(history)


def _place(event: Event) -> tuple[int, int]:
    return event["partition"], event["offset"]


def lost_acknowledged(history: History) -> list[str]:
    """I1: everything acknowledged is in the log in the end, where it was said to be."""
    drained = {(event["value"], *_place(event)) for event in _drained(history)}
    return [
        f"lost: {event['value']} was acknowledged at {_place(event)}"
        for event in _of(history, "produce", "ok")
        if (event["value"], *_place(event)) not in drained
    ]


def changed_places(history: History) -> list[str]:
    """I2: one place holds one value, whoever looks and whenever."""
    values: defaultdict[tuple[int, int], set[str]] = defaultdict(set)
    for event in _of(history, "produce", "ok") + _read(history):
        values[_place(event)].add(event["value"])
    return [f"{place} held {sorted(found)}" for place, found in values.items() if len(found) > 1]


def refused_but_written(history: History) -> list[str]:
    """I3, first half: what was reported as not written, by every attempt, never appears."""
    unsure = {event["value"] for kind in ("ok", "info") for event in _of(history, "produce", kind)}
    answered = {event["value"] for event in _of(history, "produce", "fail")}
    finished = Counter(event["value"] for kind in ("ok", "fail", "info") for event in _of(history, "produce", kind))
    sent = Counter(event["value"] for event in _of(history, "produce", "invoke"))
    refused = {value for value in answered - unsure if finished[value] == sent[value]}
    return [f"{value} was reported as not written" for value in _values(_read(history)) if value in refused]


def written_twice(history: History) -> list[str]:
    """I3, second half, and I4: a value is in the log at most once, through all its attempts."""
    places: defaultdict[str, set[tuple[int, int]]] = defaultdict(set)
    for event in _of(history, "produce", "ok") + _read(history):
        places[event["value"]].add(_place(event))
    return [f"{value} is at {sorted(found)}" for value, found in places.items() if len(found) > 1]


def out_of_order(history: History) -> list[str]:
    """I5, first half: per producer and partition, what was sent later has the larger offset."""
    last: dict[tuple[str, int], tuple[int, int]] = {}
    wrong = []
    for event in _of(history, "produce", "ok"):
        key = event["process"], event["partition"]
        sequence, offset = last.get(key, (-1, -1))
        if event["sequence"] > sequence and event["offset"] <= offset:
            wrong.append(f"{event['value']} at {_place(event)} was sent after the one at {offset}")
        last[key] = max((sequence, offset), (event["sequence"], event["offset"]))
    return wrong


def cursor_jumps(history: History) -> list[str]:
    """I5, second half: what one consumer reads of a partition is contiguous and never goes back."""
    return [
        f"{process} read {offset} of partition {partition} where {expected} was next"
        for (process, partition), offsets in _reads_by_cursor(history).items()
        for expected, offset in zip(range(offsets[0], offsets[0] + len(offsets)), offsets, strict=True)
        if offset != expected
    ]


def _reads_by_cursor(history: History) -> dict[tuple[str, int], list[int]]:
    offsets: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for event in _read(history):
        offsets[event["process"], event["partition"]].append(event["offset"])
    return dict(offsets)


def gaps(history: History) -> list[str]:
    """Offsets are gapless from 0: a drain of the whole log has each of them."""
    offsets: defaultdict[int, set[int]] = defaultdict(set)
    for event in _drained(history):
        offsets[event["partition"]].add(event["offset"])
    return [
        f"partition {partition} lacks {sorted(set(range(max(found))) - found)}"
        for partition, found in offsets.items()
        if found != set(range(max(found) + 1))
    ]


def invented(history: History) -> list[str]:
    """I10: every value read was sent."""
    sent = {event["value"] for event in _of(history, "produce", "invoke")}
    return [f"{value} was never sent" for value in _values(_read(history)) if value not in sent]


def _values(events: Iterable[Event]) -> set[str]:
    return {event["value"] for event in events}


INVARIANTS: tuple[Callable[[History], list[str]], ...] = (
    lost_acknowledged,
    changed_places,
    refused_but_written,
    written_twice,
    out_of_order,
    cursor_jumps,
    gaps,
    invented,
)


def violations(history: History) -> dict[str, list[str]]:
    """All that is wrong, by invariant; the first few of each."""
    found = {invariant.__name__: invariant(history) for invariant in INVARIANTS}
    return {name: problems[:5] for name, problems in found.items() if problems}


def longest_gap_s(history: History, f: str) -> float:
    """The longest time without a success of this kind, between the first and the last."""
    times = sorted(event["s"] for event in _of(history, f, "ok"))
    return max((later - earlier for earlier, later in itertools.pairwise(times)), default=0.0)
