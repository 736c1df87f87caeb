"""The state of a replica apart from its log, as the journal keeps it, and its msgpack value."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple
from uuid import UUID

import msgpack

from broker.raft.configuration import NO_MEMBERS, GroupConfiguration, MemberId
from broker.raft.snapshot import HardState
from broker.storage.entry import Corrupted, Entry, Tail, configuration_of, configuration_values

TermRuns = tuple[tuple[int, int], ...]  # (first index, term), in order


@dataclass(frozen=True, slots=True)
class Settings:
    """What the catalog says about a partition; the same on all replicas."""

    topic: str
    retention_ms: int | None = None
    retention_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class SnapshotState:
    """The snapshot record without its dedupe table, which is a file of its own."""

    index: int = 0
    configuration: GroupConfiguration = NO_MEMBERS
    configuration_index: int = 0
    file: int = 0  # number of the file with the dedupe table; 0: the table is empty
    file_crc: int = 0


@dataclass(frozen=True, slots=True)
class Group:
    """A replica of a partition. A topic that was deleted and made again is another group."""

    group_id: int  # names files and cached entries; never used twice, and a log that starts anew gets another one
    topic_id: UUID
    partition_id: int
    incarnation: int  # of this replica: its name as a member
    settings: Settings
    hard: HardState
    first_index: int = 1
    start_offset: int = 0
    start_bytes: int = 0  # end_bytes of the entry before the first
    start_crc: int = 0  # crc of the entry before the first
    previous_term: int = 0  # of the entry before the first
    snapshot: SnapshotState = SnapshotState()
    suspect: str | None = None  # why this replica may not vote: it may have lost what it promised
    damage: str | None = None  # what is wrong with its stored entries; it votes, but does not lead

    @property
    def start(self) -> Tail:
        return Tail(self.first_index, self.start_offset, 0, self.start_bytes, self.start_crc)


class DroppedGroup(NamedTuple):
    """A group that is gone, and what is left of it."""

    group_id: int
    former: tuple[bytes, int] | None = None  # topic and partition, when this broker does not hold it any more
    aside: str | None = None  # the name under which its files are kept


@dataclass(frozen=True, slots=True)
class LogPosition:
    """How far a partition's files are synced: everything needed to go on from there without reading them."""

    segment: int  # first index of the file that is appended to; 0: there is no file yet
    at: int  # its length
    tail: Tail
    terms: TermRuns


def group_value(group: Group) -> bytes:
    hard, snapshot, settings = group.hard, group.snapshot, group.settings
    return _packed(
        (
            group.group_id,
            group.topic_id.bytes,
            group.partition_id,
            group.incarnation,
            (settings.topic, settings.retention_ms, settings.retention_bytes),
            (hard.term, hard.vote, hard.commit),
            (group.first_index, group.start_offset, group.start_bytes, group.start_crc, group.previous_term),
            (
                snapshot.index,
                configuration_values(snapshot.configuration),
                snapshot.configuration_index,
                snapshot.file,
                snapshot.file_crc,
            ),
            group.suspect,
            group.damage,
        )
    )


def group_of(value: bytes | memoryview) -> Group:
    try:
        group_id, topic_id, partition_id, incarnation, settings, hard, start, snapshot, suspect, damage = _unpacked(
            value
        )
        term, vote, commit = hard
        first_index, start_offset, start_bytes, start_crc, previous_term = start
        index, configuration, configuration_index, file, file_crc = snapshot
        return Group(
            group_id,
            UUID(bytes=topic_id),
            partition_id,
            incarnation,
            Settings(*settings),
            HardState(term, None if vote is None else MemberId(*vote), commit),
            first_index,
            start_offset,
            start_bytes,
            start_crc,
            previous_term,
            SnapshotState(index, configuration_of(configuration), configuration_index, file, file_crc),
            suspect,
            damage,
        )
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise Corrupted(f"the state of a partition is not readable: {error}") from error


def dropped_value(dropped: DroppedGroup) -> bytes:
    return _packed((dropped.former, dropped.aside))


def dropped_of(group_id: int, value: bytes | memoryview) -> DroppedGroup:
    try:
        former, aside = _unpacked(value)
        return DroppedGroup(group_id, None if former is None else (former[0], former[1]), aside)
    except (ValueError, TypeError, IndexError, msgpack.UnpackException) as error:
        raise Corrupted(f"the end of a partition is not readable: {error}") from error


def position_value(position: LogPosition) -> bytes:
    tail = position.tail
    return _packed(
        (
            position.segment,
            position.at,
            (tail.next_index, tail.end_offset, tail.append_time, tail.end_bytes, tail.crc),
            _run_steps(position.terms),
        )
    )


def position_of(value: bytes | memoryview) -> LogPosition:
    try:
        segment, at, tail, terms = _unpacked(value)
        return LogPosition(segment, at, Tail(*tail), _runs_of(terms))
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise Corrupted(f"the position of a partition is not readable: {error}") from error


def _run_steps(terms: TermRuns) -> list[int]:
    """Differences, which take three or four bytes a run: the head of a journal segment has those of all partitions."""
    steps: list[int] = []
    last_first = last_term = 0
    for first, term in terms:
        steps += (first - last_first, term - last_term)
        last_first, last_term = first, term
    return steps


def _runs_of(steps: list[int]) -> TermRuns:
    return tuple(zip(accumulate(steps[::2]), accumulate(steps[1::2]), strict=True))


def _packed(value: object) -> bytes:
    packed: bytes = msgpack.packb(value)
    return packed


def _unpacked(value: bytes | memoryview) -> Any:
    return msgpack.unpackb(value)


# The terms of a log's entries


def runs_with(runs: TermRuns, entries: Sequence[Entry]) -> TermRuns:
    """After the entries, which follow or replace what is there from their first index on."""
    runs = runs_before(runs, entries[0].index)
    last = runs[-1][1] if runs else -1
    if entries[-1].term == last:
        return runs
    found = list(runs)
    for entry in entries:
        if entry.term != last:
            last = entry.term
            found.append((entry.index, last))
    return tuple(found)


def runs_before(runs: TermRuns, index: int) -> TermRuns:
    if not runs or runs[-1][0] < index:
        return runs
    return tuple(run for run in runs if run[0] < index)


def runs_from(runs: TermRuns, first_index: int) -> TermRuns:
    """Of a log that begins with this entry."""
    reaching = [number for number, run in enumerate(runs) if run[0] <= first_index]
    if not reaching:
        return runs
    return ((first_index, runs[reaching[-1]][1]), *runs[reaching[-1] + 1 :])


def term_before(runs: TermRuns, index: int, term_before_start: int) -> int:
    before = runs_before(runs, index)
    return before[-1][1] if before else term_before_start
