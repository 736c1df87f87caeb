"""The files of the journal: which hold frames that a start would replay, and which may be written over."""

import re
import threading
from dataclasses import dataclass

from broker.storage.disk import Disk, DiskFile

ASIDE = "damaged"  # the folder that takes the segments of a damaged journal when no start needs them any more
_NAME = re.compile(r"journal-(\d+)")


@dataclass(eq=False)
class Slot:
    name: str
    file: DiskFile
    size_bytes: int
    segment: int = 0  # ordinal of what it holds; 0: nothing
    written_bytes: int = 0  # blocks from here on were allocated but never written
    in_use: bool = False  # a start may read it
    is_damaged: bool = False  # or belongs to a journal that is: set aside, not written over
    busy: bool = False  # upkeep is writing zeros to it, or the writer its first frame


class Slots:
    """The writer takes slots, upkeep makes and removes them. The lock is never held during IO."""

    def __init__(self, disk: Disk, segment_bytes: int, max_segments: int) -> None:
        self._disk = disk
        self._segment_bytes = segment_bytes
        self._max_segments = max_segments
        self._changed = threading.Condition()
        self._slots: list[Slot] = []
        self.current: Slot | None = None
        self.too_many = False  # starts in a row made more than there should be: a new head frees them early

    def open(self) -> list[Slot]:
        """The files that are there."""
        for name in sorted(name for name in self._disk.names() if _NAME.fullmatch(name)):
            file = self._disk.open(name)
            self._slots.append(Slot(name, file, file.size_bytes))
        return self._slots

    def recovered(self, segments: dict[str, int], needed: set[str], current: Slot | None, *, is_damaged: bool) -> None:
        """`segments` are the ordinals by slot; `needed` must not be written over before there is a new head."""
        with self._changed:
            for slot in self._slots:
                slot.segment = segments.get(slot.name, 0)
                slot.written_bytes = slot.size_bytes if slot.segment else 0
                slot.in_use = slot.name in needed
                slot.is_damaged = is_damaged and slot.segment > 0
            self.current = current

    def sync_names(self) -> None:
        """A process that was killed may have left a file whose name is not on the disk yet."""
        if self._slots:
            self._disk.sync_folder()

    @property
    def spare(self) -> int:
        with self._changed:
            return len(self._ready())

    def may_change(self, replay_from: int | None) -> bool:
        """Whether a segment can begin and leave a slot for the one after it: else nothing would ever be freed."""
        with self._changed:
            ready = len(self._ready())
            return ready > 1 or (ready == 1 and any(self._freed(slot, replay_from) for slot in self._slots))

    def would_shrink(self, replay_from: int | None) -> bool:
        """Whether a new head frees slots, for upkeep to remove those that are too many."""
        with self._changed:
            return bool(self._ready()) and any(self._freed(slot, replay_from) for slot in self._slots)

    def take(self) -> Slot | None:
        """The slot for the next segment: the one with the oldest contents, for a bad head falls back on the younger."""
        with self._changed:
            ready = min(self._ready(), key=lambda slot: (slot.busy, slot.segment), default=None)
            if ready is not None:
                while ready.busy:
                    self._changed.wait()
                ready.busy = True
            return ready

    def give_back(self, slot: Slot) -> None:
        """Its head could not be written."""
        with self._changed:
            slot.busy = False

    def begun(self, slot: Slot, segment: int, replay_from: int, position: int) -> None:
        """The head of the segment is on the disk: what only heads before it needed is free."""
        with self._changed:
            if self.current is not None:
                self.current.written_bytes = max(self.current.written_bytes, position)
            for other in self._slots:
                if self._freed(other, replay_from):
                    other.in_use = False
            slot.segment, slot.in_use, slot.busy = segment, True, False
            self.current = slot

    def prepare(self) -> bool:
        """Removes or sets aside what cannot be used again, and allocates a file when one is missing."""
        with self._changed:
            unusable = self._unusable()
            self._slots = [slot for slot in self._slots if slot not in unusable]
            self.too_many = len(self._slots) > self._max_segments
        for slot in unusable:
            slot.file.close()
            if slot.is_damaged:
                self._disk.rename(slot.name, f"{ASIDE}/{slot.name}-{slot.segment}")
            else:
                self._disk.remove(slot.name)
        with self._changed:
            ready = len(self._ready())
            wanted = ready == 0 or (ready == 1 and len(self._slots) < self._max_segments)
            taken = {slot.name for slot in self._slots}
        if wanted:
            self._make(next(name for n in range(len(taken) + 1) if (name := f"journal-{n}") not in taken))
        return bool(unusable) or wanted

    def prefill(self, max_bytes: int) -> bool:
        """Writing to blocks for the first time costs the file system a transaction of its own."""
        if not self._disk.prefills:
            return False
        with self._changed:
            ready = (slot for slot in self._ready() if not slot.busy)
            slot = next((slot for slot in ready if slot.written_bytes < slot.size_bytes), None)
            if slot is None:
                return False
            slot.busy = True
        try:
            size = min(max_bytes, slot.size_bytes - slot.written_bytes)
            slot.file.write([bytes(size)], slot.written_bytes, sync=True)
            slot.written_bytes += size
        finally:
            with self._changed:
                slot.busy = False
                self._changed.notify_all()
        return True

    def close(self) -> None:
        for slot in self._slots:
            slot.file.close()

    def _ready(self) -> list[Slot]:
        return [slot for slot in self._slots if self._is_ready(slot)]

    def _is_ready(self, slot: Slot) -> bool:
        is_usable = slot.size_bytes == self._segment_bytes and not slot.is_damaged
        return is_usable and not slot.in_use and (self._disk.recycles or slot.segment == 0)

    def _unusable(self) -> list[Slot]:
        idle = [slot for slot in self._slots if not slot.in_use and not slot.busy]
        unusable = [slot for slot in idle if not self._is_ready(slot)]
        surplus = len(self._slots) - len(unusable) - self._max_segments
        ready = [slot for slot in idle if self._is_ready(slot)]
        return unusable + ready[: max(0, min(surplus, len(ready) - 1))]

    def _freed(self, slot: Slot, replay_from: int | None) -> bool:
        """By a head that is written now: the segment before it stays, for the head may turn out bad."""
        return slot.in_use and slot is not self.current and (replay_from is None or slot.segment < replay_from)

    def _make(self, name: str) -> None:
        file = self._disk.open(name, create=True)
        try:
            file.allocate(self._segment_bytes)
            file.sync()
            self._disk.sync_folder()
        except BaseException:
            file.close()
            self._disk.remove(name)
            raise
        with self._changed:
            self._slots.append(Slot(name, file, self._segment_bytes))
            self.too_many = len(self._slots) > self._max_segments
