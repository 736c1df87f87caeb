"""Proves a consumer's file: complete, nothing twice, each lane in order. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from examples.scenarios.log_file import Line

Consumed = tuple[str, str]  # topic and message


class LaneKey(NamedTuple):
    """A lane keeps its order within a topic: all its lines carry one key, so they are in one partition."""

    producer: int
    lane: str
    topic: str


@dataclass(slots=True)
class ConsumerCheck:
    expected: int = 0
    received: int = 0
    missing: Counter[Consumed] = field(default_factory=Counter)
    repeated: Counter[Consumed] = field(default_factory=Counter)  # more often than sent
    unknown: Counter[Consumed] = field(default_factory=Counter)  # never sent
    disordered: list[str] = field(default_factory=list)  # a sentence each
    unjudged: int = 0  # sent by several lanes: counted, but their order cannot be judged

    @property
    def is_good(self) -> bool:
        return not (self.missing or self.repeated or self.unknown or self.disordered)


def judge(sent: Mapping[int, Iterable[Line]], topics: Iterable[str], received: Sequence[Consumed]) -> ConsumerCheck:
    """Compare the lines sent to these topics, by producer, with the file of one consumer of them."""
    wanted = set(topics)
    lanes: dict[LaneKey, list[str]] = defaultdict(list)
    owners: dict[Consumed, set[LaneKey]] = defaultdict(set)
    for producer, lines in sent.items():
        for line in lines:
            if line.topic in wanted:
                lane = LaneKey(producer, line.lane, line.topic)
                lanes[lane].append(line.message)
                owners[line.topic, line.message].add(lane)
    expected = Counter((lane.topic, message) for lane, messages in lanes.items() for message in messages)
    got = Counter(received)
    surplus = got - expected
    return ConsumerCheck(
        expected=expected.total(),
        received=len(received),
        missing=expected - got,
        repeated=Counter({one: count for one, count in surplus.items() if one in expected}),
        unknown=Counter({one: count for one, count in surplus.items() if one not in expected}),
        disordered=_disorder(lanes, owners, received),
        unjudged=sum(count for one, count in expected.items() if len(owners[one]) > 1),
    )


def _disorder(
    lanes: Mapping[LaneKey, list[str]], owners: Mapping[Consumed, set[LaneKey]], received: Sequence[Consumed]
) -> list[str]:
    """Every message that comes after one that its lane sent later."""
    # Equal messages of a lane are matched in order: the first one received is the first one sent.
    places: dict[LaneKey, dict[tuple[str, int], int]] = {}
    for lane, messages in lanes.items():
        turns: Counter[str] = Counter()
        places[lane] = {}
        for place, message in enumerate(messages):
            places[lane][message, turns[message]] = place
            turns[message] += 1
    problems = []
    seen: Counter[Consumed] = Counter()
    furthest: dict[LaneKey, tuple[int, str]] = {}
    for topic, message in received:
        of = owners.get((topic, message), set())
        if len(of) != 1:
            continue
        (lane,) = of
        turn = seen[topic, message]
        seen[topic, message] += 1
        found = places[lane].get((message, turn))
        if found is None:
            continue  # a repetition, which is counted elsewhere
        before = furthest.get(lane)
        if before is not None and found < before[0]:
            problems.append(
                f"{topic}: {message!r} comes after {before[1]!r}, which P{lane.producer} sent later in lane {lane.lane}"
            )
        else:
            furthest[lane] = (found, message)
    return problems
