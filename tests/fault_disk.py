"""A disk that fails as disks do: power is lost at any call, and of what was not synced any sectors are there or not.

Contents are kept twice: as the page cache has them and as the disk does. A sector that was not synced has, after power
is lost, either its new content or what was there before. Names are changed in order: some first of them survive.
"""

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

from broker.storage.disk import DiskError, DiskFile, NoSpace
from broker.storage.record import Buffer

SECTOR_BYTES = 512
SIZE = -1  # in place of a sector's number: the length of a file

Keep = Callable[[str, int], bool]  # whether an unsynced sector of a file reached the disk


class Fault(Enum):
    POWER_LOSS = "power is lost during the call"
    NO_SPACE = "the call meets a full disk half way"
    ERROR = "the call fails, and the page cache forgets that anything was to be written"


class PowerLoss(Exception):
    """Every call from now on: the process is gone."""


class FaultContents:
    """What one file holds."""

    def __init__(self) -> None:
        self.cached = bytearray()
        self.durable = bytearray()
        self.dirty: set[int] = set()  # sectors that the next sync writes
        self.unsynced: set[int] = set()  # sectors whose durable content may be another one; SIZE for the length

    def write(self, data: bytes, at: int) -> None:
        if at + len(data) > len(self.cached):
            self.resize(at + len(data))
        self.cached[at : at + len(data)] = data
        self._touch(at, at + len(data))

    def resize(self, size: int) -> None:
        old = len(self.cached)
        if size < old:
            del self.cached[size:]
            last = -(-size // SECTOR_BYTES)
            self.dirty = {sector for sector in self.dirty if sector < last}
            self.unsynced = {sector for sector in self.unsynced if sector < last}
        else:
            self.cached.extend(bytes(size - old))
            self._touch(old, size)  # what a longer file held there before must not come back
        self.unsynced.add(SIZE)
        self.dirty.add(SIZE)

    def _touch(self, at: int, end: int) -> None:
        sectors = range(at // SECTOR_BYTES, -(-end // SECTOR_BYTES))
        self.dirty.update(sectors)
        self.unsynced.update(sectors)

    def sync(self, at: int = 0, end: int | None = None) -> None:
        """Of the whole file, or of what was written between `at` and `end`."""
        last = len(self.cached) if end is None else end
        sectors = range(at // SECTOR_BYTES, -(-last // SECTOR_BYTES))
        done = {sector for sector in self.dirty if sector == SIZE or sector in sectors}
        self._store(done)
        self.dirty -= done
        self.unsynced -= done

    def _store(self, sectors: set[int]) -> None:
        if SIZE in sectors:
            size = len(self.cached)
            if size < len(self.durable):
                del self.durable[size:]
            else:
                self.durable.extend(bytes(size - len(self.durable)))
        for sector in sectors - {SIZE}:
            at = sector * SECTOR_BYTES
            piece = self.cached[at : at + SECTOR_BYTES]
            if len(self.durable) < at + len(piece):
                piece = piece[: max(0, len(self.durable) - at)]
            self.durable[at : at + len(piece)] = piece

    def after_power_loss(self, keep: Callable[[int], bool]) -> "FaultContents":
        self._store({sector for sector in sorted(self.unsynced) if keep(sector)})
        found = FaultContents()
        found.durable = bytearray(self.durable)
        found.cached = bytearray(self.durable)
        return found


@dataclass
class NameChange:
    """Of one file, or of all in a folder that is renamed, which happens at once."""

    moves: list[tuple[str | None, str | None, FaultContents]]


@dataclass
class FaultDisk:
    """`faults` by the number of the call that changes something, from 1 on; `calls` is the last one's."""

    recycles: bool = True
    limit_bytes: int | None = None
    faults: dict[int, Fault] = field(default_factory=dict)
    calls: int = 0
    prefills: bool = True
    log: list[str] = field(default_factory=list)  # what each call was
    _files: dict[str, FaultContents] = field(default_factory=dict)
    _durable_files: dict[str, FaultContents] = field(default_factory=dict)
    _name_changes: list["NameChange"] = field(default_factory=list)  # not synced yet
    _lost: bool = False
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def open(self, name: str, *, create: bool = False) -> DiskFile:
        with self._lock:
            self.check()
            if name not in self._files:
                if not create:
                    raise FileNotFoundError(name)
                self.call(f"create {name}")
                self._files[name] = FaultContents()
                self._name_changes.append(NameChange([(None, name, self._files[name])]))
            return FaultFile(self, name, self._files[name])

    def names(self, folder: str = "") -> list[str]:
        prefix = f"{folder}/" if folder else ""
        with self._lock:
            self.check()
            return list(dict.fromkeys(n[len(prefix) :].split("/")[0] for n in self._files if n.startswith(prefix)))

    def rename(self, name: str, new_name: str) -> None:
        with self._lock:
            self.call(f"rename {name}")
            moved = _below(self._files, name)
            if not moved:
                raise FileNotFoundError(name)
            change = NameChange([])
            for old in moved:
                new = new_name + old[len(name) :]
                self._files[new] = self._files.pop(old)
                change.moves.append((old, new, self._files[new]))
            self._name_changes.append(change)

    def remove(self, name: str) -> None:
        with self._lock:
            self.call(f"remove {name}")
            for gone in _below(self._files, name):
                self._name_changes.append(NameChange([(gone, None, self._files.pop(gone))]))

    def sync_folder(self, folder: str = "") -> None:
        with self._lock:
            self.call(f"sync folder {folder}")
            self._apply_names(self._durable_files, len(self._name_changes))
            self._name_changes.clear()

    def free_bytes(self) -> int | None:
        with self._lock:
            return None if self.limit_bytes is None else max(0, self.limit_bytes - self.used_bytes)

    def close(self) -> None:
        """The contents stay: the next start opens the same disk."""

    @property
    def used_bytes(self) -> int:
        return sum(len(contents.cached) for contents in self._files.values())

    # What a test does to the disk

    def unsynced(self) -> list[tuple[str, int]]:
        """Every sector, and SIZE of a file, that power loss may revert."""
        return [(name, sector) for name, contents in self._files.items() for sector in sorted(contents.unsynced)]

    def after_power_loss(self, keep: Keep = lambda *_: False, *, name_changes: int = 0) -> "FaultDisk":
        """What a start finds then. `name_changes`: how many of those that were not synced are there."""
        with self._lock:
            files = dict(self._durable_files)
            self._apply_names(files, name_changes)
            found = FaultDisk(self.recycles, self.limit_bytes)
            for name, contents in files.items():
                copy = FaultContents()
                copy.cached, copy.durable = bytearray(contents.cached), bytearray(contents.durable)
                copy.unsynced = set(contents.unsynced)
                found._files[name] = copy.after_power_loss(partial(keep, name))
            found._durable_files = dict(found._files)
            return found

    def after_any_power_loss(self, chance: random.Random) -> "FaultDisk":
        """One of the many outcomes."""
        share = chance.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        changes = chance.randint(0, len(self._name_changes))
        return self.after_power_loss(lambda *_: chance.random() < share, name_changes=changes)

    def after_kill(self) -> None:
        """The process is gone, the page cache is not."""
        self._lost = False
        self.faults.clear()

    def after_cache_loss(self) -> None:
        """What a failed sync left in the page cache was dropped there: reads show what is on the disk."""
        with self._lock:
            for contents in self._files.values():
                for sector in contents.unsynced - contents.dirty - {SIZE}:
                    at = sector * SECTOR_BYTES
                    held = contents.durable[at : at + SECTOR_BYTES]
                    size = min(SECTOR_BYTES, len(contents.cached) - at)
                    contents.cached[at : at + size] = held[:size].ljust(size, b"\0")
                contents.unsynced &= contents.dirty

    def copy(self) -> "FaultDisk":
        """With everything synced."""
        return self.after_power_loss(lambda *_: True, name_changes=len(self._name_changes))

    def flip(self, name: str, bit: int) -> None:
        """The same bit in the page cache and on the disk."""
        contents = self._files[name]
        for data in (contents.cached, contents.durable):
            data[bit // 8] ^= 1 << bit % 8

    def contents(self, name: str) -> bytes:
        return bytes(self._files[name].cached)

    def synced_files(self, folder: str) -> dict[str, bytes]:
        """What each file below the folder begins with, whatever happens now; also when power was lost."""
        found = {name.removeprefix(f"{folder}/"): self._synced_contents(name) for name in _below(self._files, folder)}
        return {name: data for name, data in found.items() if data}

    def _synced_contents(self, name: str) -> bytes:
        """Nothing when its name may be lost."""
        contents = self._files[name]
        if self._durable_files.get(name) is not contents:
            return b""
        pairs = enumerate(zip(contents.cached, contents.durable, strict=False))
        size = min(len(contents.cached), len(contents.durable))
        return bytes(contents.cached[: next((at for at, (one, other) in pairs if one != other), size)])

    def overwrite(self, name: str, data: bytes, at: int = 0) -> None:
        """In the page cache and on the disk, not by the process."""
        contents = self._files[name]
        contents.cached[at : at + len(data)] = data
        contents.durable[at : at + len(data)] = data

    # Of the files

    def check(self) -> None:
        if self._lost:
            raise PowerLoss

    def call(self, what: str) -> Fault | None:
        """Counts; raises the fault that is due, but for a write, which has some effect first."""
        self.check()
        self.calls += 1
        self.log.append(what)
        fault = self.faults.get(self.calls)
        if fault is not None and not what.startswith("write"):
            self.fail(fault)
        return fault

    def fail(self, fault: Fault) -> None:
        if fault is Fault.NO_SPACE:
            raise NoSpace(f"call {self.calls}")
        if fault is Fault.ERROR:
            raise DiskError(f"call {self.calls}")
        self._lost = True
        raise PowerLoss

    def charge(self, contents: FaultContents, size: int) -> None:
        if self.limit_bytes is not None and self.used_bytes + max(0, size - len(contents.cached)) > self.limit_bytes:
            raise NoSpace(f"{self.limit_bytes} bytes are used up")

    def _apply_names(self, files: dict[str, FaultContents], count: int) -> None:
        for change in self._name_changes[:count]:
            for old, new, contents in change.moves:
                if old is not None:
                    files.pop(old, None)
                if new is not None:
                    files[new] = contents


class FaultFile:
    def __init__(self, disk: FaultDisk, name: str, contents: FaultContents) -> None:
        self._disk = disk
        self._name = name
        self._contents = contents

    @property
    def size_bytes(self) -> int:
        with self._disk._lock:
            self._disk.check()
            return len(self._contents.cached)

    def read(self, at: int, size: int) -> bytes:
        with self._disk._lock:
            self._disk.check()
            return bytes(self._contents.cached[at : at + size])

    def write(self, parts: Sequence[Buffer], at: int, *, sync: bool = False) -> None:
        data = b"".join(parts)
        disk, contents = self._disk, self._contents
        with disk._lock:
            fault = disk.call(f"write{' and sync' if sync else ''} {self._name} {at}+{len(data)}")
            disk.charge(contents, at + len(data))
            if fault is Fault.NO_SPACE:
                data = data[: len(data) // 2]
            contents.write(data, at)
            if fault is Fault.ERROR:
                contents.dirty.clear()
            if fault is not None:
                disk.fail(fault)
            if sync:
                contents.sync(at, at + len(data))

    def sync(self) -> None:
        with self._disk._lock:
            fault = self._disk.faults.get(self._disk.calls + 1)
            if fault is Fault.ERROR:
                self._contents.dirty.clear()
            self._disk.call(f"sync {self._name}")
            self._contents.sync()

    def truncate(self, size: int) -> None:
        with self._disk._lock:
            self._disk.call(f"truncate {self._name} {size}")
            self._contents.resize(size)

    def allocate(self, size: int) -> None:
        with self._disk._lock:
            self._disk.call(f"allocate {self._name} {size}")
            self._disk.charge(self._contents, size)
            if size > len(self._contents.cached):
                self._contents.resize(size)

    def drop_cache(self, at: int, size: int) -> None:
        """`after_cache_loss` does it at the worst time."""

    def close(self) -> None:
        """Nothing is held."""


def _below(files: dict[str, FaultContents], name: str) -> list[str]:
    return [found for found in files if found == name or found.startswith(f"{name}/")]
