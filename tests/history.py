"""Judges what clients saw: pure functions over a history of invoke / ok / fail / info, each naming every violation.

A history is a list of JSON objects, one a line. An operation is one value to produce or one message to consume; its
attempts share the value. `fail` means reported as not written; `info` means unknown: a timeout, a reset, or an
answer that says so.

    {"f": "produce", "type": "invoke", "process": "p0", "sequence": 7, "value": "p0-7", "s": 12.3}
    {"f": "produce", "type": "ok", "process": "p0", "sequence": 7, "value": "p0-7", "partition": 1, "offset": 40, ...}
    {"f": "consume", "type": "ok", "process": "c0", "value": "p0-7", "partition": 1, "offset": 40, "s": 12.9}
    {"f": "drain", "type": "ok", "process": "d0", ...}   like consume, after all is healed: the whole log from its start
    {"f": "size", "type": "invoke", "process": "s0", "value": null, ...}
    {"f": "size", "type": "ok", "process": "s0", "value": 41, ...}   of a consumer that never reads: everything
    {"f": "register", "type": "ok", "process": "reader-3", "value": 17, ...}   the id that a name got
    {"f": "kill", "type": "info", "process": "broker-1", "value": null, "s": 13.0}   a fault, by the name of its victim
"""

import bisect
import itertools
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

Event = dict[str, Any]
History = Sequence[Event]

UNREPORTED_S = 2.0  # deliveries are reported several times a second; the rest is for a slow machine
# What ends, or takes away the database of, a process that is about to store that messages were delivered.
INTERRUPTIONS = frozenset({"kill", "pause", "term", "erase"})
WRITERS_OF_DELIVERIES = ("write-manager", "read-manager", "postgres")


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
    """I2: one offset of a partition holds one value, for every reader at any time."""
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
    """I5, second half: what one consumer reads of a partition is contiguous and never goes back. What it read within
    `UNREPORTED_S` of a fault of a manager or of PostgreSQL may come once more: the delivery may not have been stored.
    """
    faults_s = _interruptions_s(history)
    wrong = []
    for (process, partition), reads in _reads_by_cursor(history).items():
        expected = reads[0]["offset"]
        may_repeat: set[int] = set()
        for event in reads:
            offset = event["offset"]
            if offset in may_repeat:
                may_repeat.discard(offset)
                continue
            if offset != expected:
                wrong.append(f"{process} read {offset} of partition {partition} where {expected} was next")
            elif any(abs(event["s"] - fault_s) < UNREPORTED_S for fault_s in faults_s):
                may_repeat.add(offset)
            expected = max(expected, offset + 1)
    return wrong


def _interruptions_s(history: History) -> list[float]:
    return [
        event["s"]
        for event in history
        # A container has the name of its service within its own.
        if event["f"] in INTERRUPTIONS and any(service in event["process"] for service in WRITERS_OF_DELIVERIES)
    ]


def _reads_by_cursor(history: History) -> dict[tuple[str, int], list[Event]]:
    reads: defaultdict[tuple[str, int], list[Event]] = defaultdict(list)
    for event in _read(history):
        reads[event["process"], event["partition"]].append(event)
    return dict(reads)


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


def overtaken(history: History) -> list[str]:
    """I8, as clients see it: what was sent after something was acknowledged lies behind it in its partition.

    A leader of an old term that still acknowledged would give out offsets that a newer one has given already, or would
    have them overwritten.
    """
    sent: dict[str, float] = {}
    for event in _of(history, "produce", "invoke"):
        sent.setdefault(event["value"], event["s"])
    wrong = []
    for events in _by_partition(_of(history, "produce", "ok")).values():
        acknowledged = sorted(events, key=lambda event: event["s"])
        highest = list(itertools.accumulate((event["offset"] for event in acknowledged), max))
        times = [event["s"] for event in acknowledged]
        for event in acknowledged:
            earlier = bisect.bisect_left(times, sent[event["value"]])
            if earlier and highest[earlier - 1] >= event["offset"]:
                wrong.append(f"{event['value']} at {_place(event)} was sent after {highest[earlier - 1]} was taken")
    return wrong


def stale_sizes(history: History) -> list[str]:
    """I8 for reads: a size never goes back, and counts all that was acknowledged before it was asked for."""
    wrong = []
    ends: dict[int, int] = {}
    asked: dict[str, tuple[int, int]] = {}  # by process: what was known when it asked
    known = 0
    for event in history:
        if (event["f"], event["type"]) == ("produce", "ok"):
            ends[event["partition"]] = max(ends.get(event["partition"], 0), event["offset"] + 1)
        elif (event["f"], event["type"]) == ("size", "invoke"):
            asked[event["process"]] = sum(ends.values()), known
        elif (event["f"], event["type"]) == ("size", "ok"):
            acknowledged, reported = asked[event["process"]]
            if event["value"] < max(acknowledged, reported):
                wrong.append(f"size {event['value']} after {acknowledged} were acknowledged and {reported} reported")
            known = max(known, event["value"])
    return wrong


def given_twice(history: History) -> list[str]:
    """An id belongs to one name, and a name keeps its id."""
    names: defaultdict[int, set[str]] = defaultdict(set)
    ids: defaultdict[str, set[int]] = defaultdict(set)
    for event in _of(history, "register", "ok"):
        names[event["value"]].add(event["process"])
        ids[event["process"]].add(event["value"])
    return [f"id {number} is of {sorted(found)}" for number, found in names.items() if len(found) > 1] + [
        f"{name} has ids {sorted(found)}" for name, found in ids.items() if len(found) > 1
    ]


def _by_partition(events: Iterable[Event]) -> dict[int, list[Event]]:
    found: defaultdict[int, list[Event]] = defaultdict(list)
    for event in events:
        found[event["partition"]].append(event)
    return dict(found)


INVARIANTS: tuple[Callable[[History], list[str]], ...] = (
    lost_acknowledged,
    changed_places,
    refused_but_written,
    written_twice,
    out_of_order,
    cursor_jumps,
    gaps,
    invented,
    overtaken,
    stale_sizes,
    given_twice,
)


def violations(history: History) -> dict[str, list[str]]:
    """All that is wrong, by invariant; the first few of each."""
    found = {invariant.__name__: invariant(history) for invariant in INVARIANTS}
    return {name: problems[:5] for name, problems in found.items() if problems}


def came_again(history: History) -> int:
    """How many messages a consumer got more often than once."""
    reads = Counter((event["process"], *_place(event)) for event in _of(history, "consume", "ok"))
    return sum(count - 1 for count in reads.values())


def refusals(history: History) -> Counter[str]:
    """What was answered instead of a success, and how often: "produce 503 50306"."""
    return Counter(f"{event['f']} {event['why']}" for event in history if "why" in event)


def longest_gap_s(history: History, f: str) -> float:
    """The longest time without a success of this kind, between the first and the last."""
    times = sorted(event["s"] for event in _of(history, f, "ok"))
    return max((later - earlier for earlier, later in itertools.pairwise(times)), default=0.0)


def outages_s(history: History, fault: str, of: str = "produce") -> list[float]:
    """For each fault of this kind, the longest time without a success of a kind from there to the next one (I9)."""
    faults = [event["s"] for event in history if event["f"] == fault]
    times = sorted(event["s"] for event in _of(history, of, "ok"))
    pauses = list(itertools.pairwise(times))
    return [
        # A pause that begins before the next fault and outlasts it is that one's, unless it began with this one.
        max(
            (b - a for a, b in pauses if b >= start and a < end and (b <= end or a <= start)),
            default=math.inf,
        )
        for start, end in itertools.pairwise([*faults, math.inf])
    ]
