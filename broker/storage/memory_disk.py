"""A disk in memory, of a given size: everything is gone with the process."""

import os
import threading
from collections.abc import Sequence

from broker.storage.disk import DiskFile, NoSpace
from broker.storage.file_writes import disk_errors, read_at, write_at
from broker.storage.record import Buffer


class _Contents:
    """What a file holds; lives until the last open file is closed and its name is gone."""

    def __init__(self, name: str) -> None:
        self.descriptor = os.memfd_create(name.replace("/", "-"), os.MFD_CLOEXEC)
        self.size = 0
        self.holders = 1  # the name, and every open file


class MemoryFile:
    def __init__(self, disk: "MemoryDisk", contents: _Contents, name: str) -> None:
        self._disk = disk
        self._contents = contents
        self._name = name
        self._closed = False

    @property
    def size_bytes(self) -> int:
        return self._contents.size

    def read(self, at: int, size: int) -> bytes:
        with disk_errors(self._name):
            return read_at(self._contents.descriptor, at, size)

    def write(self, parts: Sequence[Buffer], at: int, *, sync: bool = False) -> None:  # noqa: ARG002 -- the seam's
        size = sum(map(len, parts))
        self._disk.grow(self._contents, at + size)
        with disk_errors(self._name):
            write_at(self._contents.descriptor, parts, at, size, sync=False)

    def sync(self) -> None:
        """Nothing lies behind the memory."""

    def truncate(self, size: int) -> None:
        self._disk.resize(self._contents, size)

    def allocate(self, size: int) -> None:
        """Takes the room, but no memory: that comes with the first write of each page."""
        self._disk.grow(self._contents, size)

    def drop_cache(self, at: int, size: int) -> None:
        """Nothing lies behind the memory."""

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._disk.let_go(self._contents)


class MemoryDisk:
    recycles = True
    prefills = False  # zeros would only take memory

    def __init__(self, limit_bytes: int | None = None) -> None:
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._files: dict[str, _Contents] = {}
        self._lock = threading.Lock()

    def open(self, name: str, *, create: bool = False) -> DiskFile:
        with self._lock:
            contents = self._files.get(name)
            if contents is None:
                if not create:
                    raise FileNotFoundError(name)
                with disk_errors(name):
                    contents = self._files[name] = _Contents(name)
            contents.holders += 1
        return MemoryFile(self, contents, name)

    def names(self, folder: str = "") -> list[str]:
        prefix = f"{folder}/" if folder else ""
        with self._lock:
            return list(dict.fromkeys(n[len(prefix) :].split("/")[0] for n in self._files if n.startswith(prefix)))

    def rename(self, name: str, new_name: str) -> None:
        with self._lock:
            moved = {n: new_name + n[len(name) :] for n in self._files if n == name or n.startswith(f"{name}/")}
            if not moved:
                raise FileNotFoundError(name)
            replaced = [self._files.pop(new_name)] if new_name in self._files else []
            for old, new in moved.items():
                self._files[new] = self._files.pop(old)
        for contents in replaced:
            self.let_go(contents)

    def remove(self, name: str) -> None:
        with self._lock:
            gone = [self._files.pop(n) for n in list(self._files) if n == name or n.startswith(f"{name}/")]
        for contents in gone:
            self.let_go(contents)

    def sync_folder(self, folder: str = "") -> None:
        """Nothing lies behind the memory."""

    def free_bytes(self) -> int | None:
        with self._lock:
            return None if self._limit_bytes is None else max(0, self._limit_bytes - self._used_bytes)

    def close(self) -> None:
        """Files that are open stay readable until they are closed."""
        for name in list(self._files):
            self.remove(name)

    def grow(self, contents: _Contents, size: int) -> None:
        if size > contents.size:
            self.resize(contents, size)

    def resize(self, contents: _Contents, size: int) -> None:
        with self._lock:
            used_bytes = self._used_bytes + size - contents.size
            if self._limit_bytes is not None and size > contents.size and used_bytes > self._limit_bytes:
                raise NoSpace(f"{self._limit_bytes} bytes are used up")
            with disk_errors("memory"):
                os.ftruncate(contents.descriptor, size)
            self._used_bytes = used_bytes
            contents.size = size

    def let_go(self, contents: _Contents) -> None:
        with self._lock:
            contents.holders -= 1
            if contents.holders:
                return
            self._used_bytes -= contents.size
        os.close(contents.descriptor)
