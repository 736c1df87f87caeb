"""The disk: a folder of the file system."""

import fcntl
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from broker.storage.disk import DiskFile, StorageRefused
from broker.storage.file_writes import disk_error, disk_errors, read_at, write_at
from broker.storage.record import Buffer

LOCK_NAME = "lock"
_FREE_BYTES_AGE_S = 0.01
_COPY_ON_WRITE = {"btrfs", "zfs", "bcachefs", "fuse.zfs"}  # a block that is written over needs a new one


class RealFile:
    def __init__(self, descriptor: int, name: str) -> None:
        self._descriptor = descriptor
        self._name = name
        self._closed = False

    @property
    def size_bytes(self) -> int:
        with disk_errors(self._name):
            return os.fstat(self._descriptor).st_size

    def read(self, at: int, size: int) -> bytes:
        try:
            return read_at(self._descriptor, at, size)
        except OSError as error:
            raise disk_error(error, self._name) from error

    def write(self, parts: Sequence[Buffer], at: int, *, sync: bool = False) -> None:
        try:
            write_at(self._descriptor, parts, at, sum(map(len, parts)), sync=sync)
        except OSError as error:
            raise disk_error(error, self._name) from error

    def sync(self) -> None:
        with disk_errors(self._name):
            os.fdatasync(self._descriptor)

    def truncate(self, size: int) -> None:
        with disk_errors(self._name):
            os.ftruncate(self._descriptor, size)

    def allocate(self, size: int) -> None:
        with disk_errors(self._name):
            os.posix_fallocate(self._descriptor, 0, size)

    def drop_cache(self, at: int, size: int) -> None:
        with disk_errors(self._name):
            os.posix_fadvise(self._descriptor, at, size, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            os.close(self._descriptor)


class RealDisk:
    """Makes the folder, and holds a lock on it until it is closed. Raises StorageRefused when another one does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with disk_errors(str(folder)):
            _make_folder(folder)
            self._lock = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise StorageRefused(f"{folder} is in use by another process") from error
        self._closed = False
        self._free_bytes = 0
        self._look_again_s = 0.0
        self.recycles = self.prefills = file_system_of(folder) not in _COPY_ON_WRITE

    def open(self, name: str, *, create: bool = False) -> DiskFile:
        path = self.folder / name
        flags = os.O_RDWR | os.O_CLOEXEC
        try:
            if create:
                _make_folder(path.parent)
                flags |= os.O_CREAT
            return RealFile(os.open(path, flags, 0o644), name)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise disk_error(error, name) from error

    def names(self, folder: str = "") -> list[str]:
        with disk_errors(folder):
            try:
                return os.listdir(self.folder / folder)  # noqa: PTH208 -- names, not paths: there may be thousands
            except FileNotFoundError:
                return []

    def rename(self, name: str, new_name: str) -> None:
        target = self.folder / new_name
        try:
            _make_folder(target.parent)
            (self.folder / name).rename(target)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise disk_error(error, name) from error

    def remove(self, name: str) -> None:
        path = self.folder / name
        with disk_errors(name):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def sync_folder(self, folder: str = "") -> None:
        with disk_errors(folder):
            _sync_folder(self.folder / folder)

    def free_bytes(self) -> int | None:
        """As of a moment ago: every append looks several times, and much less than the reserve fits in between."""
        now_s = time.monotonic()
        if now_s >= self._look_again_s:
            with disk_errors(str(self.folder)):
                found = os.statvfs(self.folder)
            self._free_bytes = found.f_bavail * found.f_frsize
            self._look_again_s = now_s + _FREE_BYTES_AGE_S
        return self._free_bytes

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            os.close(self._lock)


def file_system_of(folder: Path) -> str:
    """Its name as the kernel has it; empty when the kernel does not say."""
    path = str(folder.resolve())
    found, length = "", 0
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        fields, _, rest = line.partition(" - ")
        mount = fields.split(" ")[4]
        if len(mount) >= length and (path == mount or path.startswith(mount.rstrip("/") + "/")):
            found, length = rest.split(" ")[0], len(mount)
    return found


def _make_folder(folder: Path) -> None:
    """With the folders above it; their names survive a power failure."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    _sync_folder(folder.parent)


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
