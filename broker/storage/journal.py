"""The journal: everything that a round of the driver owes the disk, in one write and one sync.

A few segments of a fixed size, each a file that is written over when nothing in it is needed any more. A segment begins
with a head, the state of all groups: a head and all frames after it are everything there is.
"""

import secrets
from collections.abc import Callable, Sequence

from broker.storage.disk import PAGE_BYTES, Disk, DiskError, NoSpace
from broker.storage.journal_frame import HEAD, HEADER_BYTES, RESUMED, FrameContents, contents_of, encode_frame, in_pages
from broker.storage.journal_recovery import Recovery
from broker.storage.journal_slots import Slot, Slots
from broker.storage.record import Record, RecordKind

MIN_SEGMENTS = 3  # the current one, the one before it, and one to go on in


class JournalFull(Exception):
    """Every segment holds entries that partition files may lack; upkeep must sync them first."""


class Journal:
    """`begin` and `append` belong to the writer's thread, `release`, `prepare` and `prefill` to upkeep's."""

    def __init__(
        self,
        disk: Disk,
        *,
        segment_bytes: int = 32 << 20,
        max_segments: int = 4,
        max_segment_entries: int = 30_000,
    ) -> None:
        if max_segments < MIN_SEGMENTS or segment_bytes % (4 * PAGE_BYTES):
            raise ValueError(f"a journal has at least {MIN_SEGMENTS} segments, each of a multiple of four pages")
        self.max_frame_bytes = segment_bytes // 4 - HEADER_BYTES  # of records
        self.sequence = 0
        self.segment = 0
        self.starts = 0
        self._segment_bytes = segment_bytes
        self._max_segment_entries = max_segment_entries
        self._slots = Slots(disk, segment_bytes, max_segments)
        self._recovery: Recovery | None = None
        self._slot: Slot | None = None
        self._salt = 0
        self._position = 0  # of the next frame in the segment
        self._entries = 0  # in the segment
        self._previous_crc = 0
        self._last_segment = 0  # the greatest ordinal that was ever tried
        self._released = 0
        self._failed: str | None = None

    def recover(self) -> Recovery:
        self._recovery = Recovery(self._slots.open())
        return self._recovery

    def begin(
        self,
        starts: int,
        head: Callable[[], Sequence[Record]],
        *,
        replay_from: Callable[[], int | None],
        keeps_segments: bool = False,
    ) -> None:
        """`head` must not say anything about a group that no frame said, but what is new since recovery.

        `replay_from` is called before `head`: what was synced in between is replayed once more, not lost. After
        NoSpace the call may be repeated. `keeps_segments`: those that are there are not written over but set aside, for
        they hold entries that could not be replayed.
        """
        recovery = self._recovery
        if recovery is None:
            raise ValueError("recover first")
        for _ in recovery.frames:
            """The end must be known."""
        self.starts = starts
        self._head, self._replay_from = head, replay_from
        self._last_segment = max(self._last_segment, recovery.last_segment)
        self.sequence = recovery.sequence
        self._previous_crc = recovery.previous_crc or 0
        last = recovery.last_frame
        self._slots.recovered(
            recovery.segments,
            recovery.needed,
            None if last is None else last.slot,
            is_damaged=keeps_segments or recovery.damage is not None,
        )
        self._slots.sync_names()
        if recovery.damage is not None:
            # A gap in the sequence: should the head be lost, the damage shows again.
            self.sequence = recovery.greatest_sequence() + 1
        elif last is not None:
            self._written(last.slot, [last.data], last.at)
        if not self._slots.spare:
            self._slots.prepare()
        self._change_segments(HEAD if recovery.damage is None else HEAD | RESUMED)
        # Once more as a frame: if the head turns bad, what is new in it is not lost with it.
        state = [record for record in self._head() if record.kind is not RecordKind.SYNCED]
        self._append(self._contents(state))
        self._recovery = None

    def append(self, records: Sequence[Record]) -> int:
        contents = self._contents(records)
        if not self._fits(contents.pages_bytes):
            if not self._slots.may_change(self._replay_from()):
                raise JournalFull
            self._change_segments()
        elif self._slots.too_many and self._slots.would_shrink(self._replay_from()):
            self._change_segments()
        self._append(contents)
        return self.sequence

    def has_room(self, size_bytes: int) -> bool:
        """For a frame with that many bytes of records. By what was released: any thread may ask."""
        return self._fits(in_pages(HEADER_BYTES + size_bytes)) or self._slots.may_change(self._released)

    @property
    def spare_segments(self) -> int:
        return self._slots.spare

    def release(self, before: int) -> None:
        """The files are written over when a head on the disk no longer refers to them, not before."""
        self._released = max(self._released, before)

    def prepare(self) -> bool:
        return self._slots.prepare()

    def prefill(self, max_bytes: int) -> bool:
        return self._slots.prefill(max_bytes)

    def close(self) -> None:
        self._slots.close()

    def _fits(self, pages_bytes: int) -> bool:
        return self._position + pages_bytes <= self._segment_bytes and self._entries < self._max_segment_entries

    def _contents(self, records: Sequence[Record]) -> FrameContents:
        contents = contents_of(records)
        if contents.length > self.max_frame_bytes:
            raise ValueError(f"a frame of {contents.length} bytes: {self.max_frame_bytes} is the most")
        return contents

    def _append(self, contents: FrameContents) -> None:
        assert self._slot is not None
        frame = encode_frame(
            contents,
            flags=0,
            salt=self._salt,
            segment=self.segment,
            sequence=self.sequence + 1,
            replay_from=0,
            starts=self.starts,
            previous=self._previous_crc,
        )
        self._written(self._slot, frame.parts, self._position)
        self.sequence += 1
        self._previous_crc = frame.crc
        self._position += contents.pages_bytes
        self._entries += contents.entries

    def _change_segments(self, flags: int = HEAD) -> None:
        slot = self._slots.take()
        if slot is None:
            raise JournalFull
        try:
            # Another ordinal for every try: a head that was written in part is not taken for this one.
            self._last_segment += 1
            segment, salt = self._last_segment, secrets.randbits(64)
            replay_from = self._replay_from()
            if replay_from is None:
                replay_from = segment
            contents = self._contents(self._head())
            frame = encode_frame(
                contents,
                flags=flags,
                salt=salt,
                segment=segment,
                sequence=self.sequence + 1,
                replay_from=replay_from,
                starts=self.starts,
                previous=self._previous_crc,
            )
            self._written(slot, frame.parts, 0)
        except BaseException:
            self._slots.give_back(slot)
            raise
        self._slots.begun(slot, segment, replay_from, self._position)
        self._slot, self.segment, self._salt = slot, segment, salt
        self.sequence += 1
        self._previous_crc = frame.crc
        self._position, self._entries = contents.pages_bytes, 0

    def _written(self, slot: Slot, parts: Sequence[bytes | bytearray | memoryview], at: int) -> None:
        if self._failed is not None:
            raise DiskError(self._failed)
        try:
            slot.file.write(parts, at, sync=True)
        except NoSpace:
            raise
        except BaseException as error:
            # What is on the disk is not known, and a second sync would say that all is well.
            self._failed = f"an earlier write failed: {error}"
            raise
