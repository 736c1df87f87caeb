"""A broker's folder read beside the broker: what its journal and its partitions' files hold, without changing them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from io import UnsupportedOperation
from pathlib import Path
from typing import TypeVar

from broker.storage.disk import PAGE_BYTES, Disk, DiskFile
from broker.storage.entry import Corrupted, Entry
from broker.storage.group import Group
from broker.storage.journal import Journal
from broker.storage.partition_file import FILE_HEADER_BYTES
from broker.storage.record import RECORD_BYTES, entry_at, parse
from broker.storage.recovery import ReplayedState

T = TypeVar("T")
_ATTEMPTS = 20


@dataclass
class StoredGroup:
    group: Group
    entries: list[Entry] = field(default_factory=list)
    chains: list[int] = field(default_factory=list)

    def replace_from(self, entry: Entry, chain: int) -> None:
        while self.entries and self.entries[-1].index >= entry.index:
            self.entries.pop()
            self.chains.pop()
        self.entries.append(entry)
        self.chains.append(chain)


class _File:
    def __init__(self, path: Path) -> None:
        self._data = path.read_bytes()

    @property
    def size_bytes(self) -> int:
        return len(self._data)

    def read(self, at: int, size: int) -> bytes:
        return self._data[at : at + size]

    def write(self, parts: Sequence[bytes | bytearray | memoryview], at: int, *, sync: bool = False) -> None:
        raise UnsupportedOperation("these files are only read")

    def sync(self) -> None:
        raise UnsupportedOperation("these files are only read")

    def truncate(self, size: int) -> None:
        raise UnsupportedOperation("these files are only read")

    def allocate(self, size: int) -> None:
        raise UnsupportedOperation("these files are only read")

    def drop_cache(self, at: int, size: int) -> None:
        raise UnsupportedOperation("these files are only read")

    def close(self) -> None:
        """Nothing is open."""


class _ReadOnlyDisk:
    recycles = True
    prefills = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self, name: str, *, create: bool = False) -> DiskFile:
        assert not create
        return _File(self._folder / name)

    def names(self, folder: str = "") -> list[str]:
        path = self._folder / folder
        return [found.name for found in path.iterdir()] if path.is_dir() else []

    def rename(self, name: str, new_name: str) -> None:
        raise UnsupportedOperation("these files are only read")

    def remove(self, name: str) -> None:
        raise UnsupportedOperation("these files are only read")

    def sync_folder(self, folder: str = "") -> None:
        raise UnsupportedOperation("these files are only read")

    def free_bytes(self) -> int | None:
        return None


def while_written(read: Callable[[], T]) -> T:
    """The broker may be writing meanwhile: a read that met a change is done again."""
    for _ in range(_ATTEMPTS - 1):
        try:
            return read()
        except (Corrupted, FileNotFoundError):
            continue
    return read()


def read_state(folder: Path) -> ReplayedState:
    """Raises Corrupted when the broker changed it meanwhile, or when it is damaged."""
    disk: Disk = _ReadOnlyDisk(folder)
    recovery = Journal(disk).recover()
    state = ReplayedState()
    is_first = True
    for frame in recovery.frames:
        for record in frame.records:
            state.apply(record, frame.segment, is_first_head=is_first)
        is_first = False
    if recovery.damage is not None:
        raise Corrupted(recovery.damage)
    return state


def read_folder(folder: Path, wanted: Callable[[Group], bool] = lambda _: True) -> list[StoredGroup]:
    state = read_state(folder)
    found = []
    for group in filter(wanted, state.groups.values()):
        stored = StoredGroup(group)
        for path in sorted((folder / "partitions" / str(group.group_id)).glob("*.log")):
            _read_file(path, stored)
        replayed = state.entries.get(group.group_id)
        for record, parsed, _ in replayed.records if replayed is not None else ():
            data = memoryview(bytes(record.header) + bytes(record.body))
            stored.replace_from(entry_at(data, 0, parsed, with_body=True), parsed.chain)
        kept = [n for n, entry in enumerate(stored.entries) if entry.index >= group.first_index]
        stored.entries = [stored.entries[n] for n in kept]
        stored.chains = [stored.chains[n] for n in kept]
        found.append(stored)
    return found


def _read_file(path: Path, stored: StoredGroup) -> None:
    """Up to its end, or to a record that is being written."""
    data = memoryview(path.read_bytes())
    at = FILE_HEADER_BYTES
    while at + RECORD_BYTES <= len(data):
        parsed = parse(data, at)
        if at + parsed.size_bytes > len(data):
            return
        stored.replace_from(entry_at(data, at, parsed, with_body=True), parsed.chain)
        at += parsed.size_bytes


def flip_frame(folder: Path, needle: bytes) -> None:
    """One bit in the header of the journal's frame that holds these bytes; it begins at a page."""
    (path,) = (path for path in sorted(folder.glob("journal-*")) if needle in path.read_bytes())
    data = bytearray(path.read_bytes())
    data[data.index(needle) // PAGE_BYTES * PAGE_BYTES + 20] ^= 1
    path.write_bytes(data)


def flip_bit(path: Path, needle: bytes, at: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[data.index(needle) + at] ^= 4
    path.write_bytes(data)


def partition_file_with(folder: Path, needle: bytes) -> Path:
    """The partition's file that holds these bytes."""
    return next(path for path in sorted((folder / "partitions").rglob("*.log")) if needle in path.read_bytes())
