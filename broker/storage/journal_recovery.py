"""What a journal holds after a start: the frames since a head, in order, up to where they end or are damaged.

One write is in flight at a time, and a frame is written when the one before it is synced. So a frame that does not
match its checksums is torn if nothing follows it, and damage if a header with a later sequence is found anywhere: then
it was synced once.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import cached_property

from broker.storage.disk import PAGE_BYTES
from broker.storage.entry import Corrupted
from broker.storage.journal_frame import Frame, FrameHeader, header_at, headers_in, records_of
from broker.storage.journal_slots import Slot
from broker.storage.record import Record


@dataclass
class Generation:
    """A segment as found in a slot."""

    slot: Slot
    segment: int
    salt: int
    starts: int
    first_sequence: int  # of its head
    head: FrameHeader | None  # None: its header is not readable, frames behind it are

    def read(self) -> bytes:
        return self.slot.file.read(0, self.slot.size_bytes)

    def holds(self, header: FrameHeader) -> bool:
        return (header.segment, header.salt, header.starts) == (self.segment, self.salt, self.starts)

    def frame_at(self, data: bytes, at: int, sequence: int, previous: int | None) -> FrameHeader | None:
        """The header of the frame with that sequence; `previous` None: the CRC of the frame before is not known."""
        header = header_at(data, at)
        if (
            header is None
            or not self.holds(header)
            or header.sequence != sequence
            or header.is_head != (at == 0)
            or (previous is not None and header.previous != previous)
        ):
            return None
        return header

    def first_after(self, data: bytes, at: int, sequence: int) -> tuple[int, FrameHeader] | None:
        """The first frame behind `at` that is later than `sequence`."""
        found = headers_in(data, at + 1)
        return next(((page, h) for page, h in found if self.holds(h) and h.sequence > sequence), None)

    @cached_property
    def has_good_head(self) -> bool:
        if self.head is None:
            return False
        try:
            records_of(self.slot.file.read(0, self.head.size_bytes), 0, self.head, with_bodies=True)
        except Corrupted:
            return False
        return True


@dataclass
class LastFrame:
    """Where it is, to be written again: what was read may have come from the page cache only."""

    slot: Slot
    at: int
    data: memoryview


def generation_in(slot: Slot) -> Generation | None:
    """The youngest segment that the slot holds; None: nothing was ever written to it."""
    head = header_at(slot.file.read(0, PAGE_BYTES), 0)
    if head is not None and head.is_head:
        return Generation(slot, head.segment, head.salt, head.starts, head.sequence, head)
    found = max((h for _, h in headers_in(slot.file.read(0, slot.size_bytes))), key=_age, default=None)
    if found is None:
        return None
    return Generation(slot, found.segment, found.salt, found.starts, found.sequence - 1, None)


def _age(header: FrameHeader) -> tuple[int, int]:
    """The greatest is the first frame of the youngest segment."""
    return header.segment, -header.sequence


class Recovery:
    """`frames` can be read once; `damage`, `sequence` and `last_frame` are final when they were."""

    def __init__(self, slots: list[Slot]) -> None:
        found = [generation for slot in slots if (generation := generation_in(slot)) is not None]
        self.generations = sorted(found, key=lambda generation: generation.segment)
        self.damage: str | None = None
        self.empty = False
        self.starts = max((generation.starts for generation in found), default=0)
        self.sequence = 0  # of the last good frame
        self.previous_crc: int | None = None  # its header's; None: not known
        self.last_segment = max((generation.segment for generation in found), default=0)  # good or torn
        self.last_frame: LastFrame | None = None
        self.start: Generation | None = self._start()
        self.frames: Iterator[Frame] = self._frames()

    @property
    def segments(self) -> dict[str, int]:
        """What each slot holds."""
        return {generation.slot.name: generation.segment for generation in self.generations}

    @property
    def needed(self) -> set[str]:
        """Slots that another start would read, as long as there is no new head. What is damaged stays as it is."""
        if self.damage is not None:
            return set(self.segments)
        if self.start is None or self.last_frame is None:
            return set()
        segments = self.segments
        first, last = self.start.segment, segments[self.last_frame.slot.name]
        return {name for name, segment in segments.items() if first <= segment <= last}

    def greatest_sequence(self) -> int:
        """Of everything that looks like a frame, damaged or not."""
        return max((h.sequence for generation in self.generations for _, h in headers_in(generation.read())), default=0)

    def _start(self) -> Generation | None:
        """The segment whose head the frames begin with: everything that partition files may lack comes after it."""
        latest = next((found for found in reversed(self.generations) if found.has_good_head), None)
        if latest is None or latest.head is None:
            self.empty = all(found.first_sequence <= 1 and _is_alone(found) for found in self.generations)
            if not self.empty:
                self.damage = "no head of the journal is readable"
            return None
        replay_from = latest.head.replay_from
        if all(found.segment != replay_from for found in self.generations):
            self.damage = f"segment {replay_from} of the journal is missing"
            return latest
        for found in reversed(self.generations):
            if found.segment <= replay_from and found.has_good_head:
                return found
        self.damage = f"the head of segment {replay_from} of the journal is not readable"
        return latest

    def _frames(self) -> Iterator[Frame]:
        if self.start is None:
            return
        replayed = [found for found in self.generations if found.segment >= self.start.segment]
        self.sequence = self.start.first_sequence - 1
        for number, generation in enumerate(replayed):
            # A segment ends where a later one begins: what lies behind was torn, and the start after it went on there.
            stop = min((later.first_sequence for later in replayed[number + 1 :]), default=None)
            broken = yield from self._frames_of(generation, stop)
            if broken is not None and not self._is_resumed(replayed[number + 1 :]):
                self.damage = self.damage or broken
                return

    def _is_resumed(self, later: list[Generation]) -> bool:
        """Whether a start met this damage before and went on, with the state as it was then in its head."""
        resumed = next((found.head for found in later if found.head is not None and found.head.is_resumed), None)
        if resumed is None or resumed.previous != (self.previous_crc or 0):
            return False
        self.sequence, self.previous_crc = resumed.sequence - 1, None
        return True

    def _frames_of(self, generation: Generation, stop: int | None) -> Generator[Frame, None, str | None]:
        """Those before `stop`; returns where they are damaged."""
        if stop is not None and self.sequence + 1 >= stop:
            return None
        data = generation.read()
        at = 0
        while stop is None or self.sequence + 1 < stop:
            sequence = self.sequence + 1
            header = generation.frame_at(data, at, sequence, self.previous_crc)
            records = None if header is None else _sound_records(generation, data, at, header, has_end=stop is None)
            if header is not None and records is not None:
                self.sequence, self.previous_crc = sequence, header.crc
                self.last_frame = LastFrame(generation.slot, at, memoryview(data)[at : at + header.size_bytes])
                yield Frame(sequence, generation.segment, header.is_head, records)
                at += header.pages_bytes
                continue
            later = generation.first_after(data, at, sequence)
            following = stop if later is None else later[1].sequence
            if at == 0 and following == sequence + 1:
                # The head repeats what the frames before it said, and all of them were there.
                self.sequence = sequence
                self.previous_crc = None if generation.head is None else generation.head.crc
                at = len(data) if later is None else later[0]
                continue
            if following is None:
                return None
            return (
                f"frame {sequence} of the journal ({generation.slot.name} at {at}) is not readable,"
                f" but frame {following} was written after it"
            )
        return None


def _sound_records(
    generation: Generation, data: bytes, at: int, header: FrameHeader, *, has_end: bool
) -> list[Record] | None:
    """None: they do not match their checksums. Of all frames only the last one can be torn: its bodies are checked."""
    following = (at + header.pages_bytes, header.sequence + 1, header.crc)
    is_last = has_end and generation.frame_at(data, *following) is None
    try:
        return records_of(data, at, header, with_bodies=is_last)
    except Corrupted:
        return None


def _is_alone(found: Generation) -> bool:
    """Nothing follows its head."""
    return found.head is not None and found.first_after(found.read(), 0, found.first_sequence) is None
