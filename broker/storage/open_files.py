"""Open files of the disk, least recently used closed first; a pinned file stays open and readable."""

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from broker.storage.disk import Disk, DiskFile
from broker.storage.sparse_index import IndexCache


class _Handle:
    __slots__ = ("file", "is_cached", "pins")

    def __init__(self, file: DiskFile) -> None:
        self.file = file
        self.pins = 1
        self.is_cached = False


class OpenFiles:
    """Any thread. `indexes` are those of sealed segments, shared by all partitions like the descriptors."""

    def __init__(self, disk: Disk, limit: int = 512) -> None:
        self.disk = disk
        self.indexes = IndexCache()
        self._limit = limit
        self._handles: OrderedDict[str, _Handle] = OrderedDict()
        self._removals = (
            0  # a file opened while one is removed may be the removed one: it is not kept for the next user
        )
        self._lock = threading.Lock()

    @contextmanager
    def pinned(self, name: str, *, create: bool = False) -> Iterator[DiskFile]:
        """FileNotFoundError when it is not there. Removing it meanwhile does not disturb the user."""
        handle = self._acquire(name, create)
        try:
            yield handle.file
        finally:
            self._release(handle)

    def remove(self, name: str) -> None:
        self._forget([name])
        self.disk.remove(name)
        with self._lock:
            self._removals += 1
        self._forget([name])

    def forget(self, folder: str) -> None:
        """Closes what is open below the folder, now or when its last user is done."""
        with self._lock:
            names = [name for name in self._handles if name.startswith(folder + "/")]
        self._forget(names)

    def close(self) -> None:
        with self._lock:
            names = list(self._handles)
        self._forget(names)

    def __len__(self) -> int:
        with self._lock:
            return len(self._handles)

    def _acquire(self, name: str, create: bool) -> _Handle:
        with self._lock:
            handle = self._handles.get(name)
            if handle is not None:
                handle.pins += 1
                self._handles.move_to_end(name)
                return handle
            removals = self._removals
        opened = _Handle(self.disk.open(name, create=create))  # not under the lock: it may wait for the disk
        with self._lock:
            handle = self._handles.get(name)
            if handle is None:
                handle = opened
                if removals == self._removals:
                    handle.is_cached = True
                    self._handles[name] = handle
            else:
                handle.pins += 1
            surplus = self._surplus()
        if handle is not opened:
            surplus.append(opened)
        for old in surplus:
            old.file.close()
        return handle

    def _release(self, handle: _Handle) -> None:
        with self._lock:
            handle.pins -= 1
            surplus = self._surplus()
            if not handle.is_cached and not handle.pins and handle not in surplus:
                surplus.append(handle)
        for old in surplus:
            old.file.close()

    def _surplus(self) -> list[_Handle]:
        found: list[_Handle] = []
        excess = len(self._handles) - self._limit
        if excess > 0:
            unpinned = [name for name, handle in self._handles.items() if not handle.pins]
            for name in unpinned[:excess]:
                handle = self._handles.pop(name)
                handle.is_cached = False
                found.append(handle)
        return found

    def _forget(self, names: list[str]) -> None:
        unused: list[_Handle] = []
        with self._lock:
            self._removals += 1
            for name in names:
                handle = self._handles.pop(name, None)
                if handle is not None:
                    handle.is_cached = False
                    if not handle.pins:
                        unused.append(handle)
        for handle in unused:
            handle.file.close()
