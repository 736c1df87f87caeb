"""The seam between storage and the operating system: files of a folder, read and written at positions."""

from collections.abc import Sequence
from typing import Protocol

from broker.storage.record import Buffer

PAGE_BYTES = 4096


class NoSpace(Exception):
    """The disk is full: the call had no effect that counts, and is repeated at the same position."""


class DiskError(Exception):
    """The disk failed to read or write. Not damage: what is stored is unknown, not wrong."""


class StorageRefused(Exception):
    """The folder cannot be used as it is; the message says why."""


class DiskFile(Protocol):
    """Errors are `NoSpace` and `DiskError`. Closing twice is fine."""

    @property
    def size_bytes(self) -> int: ...

    def read(self, at: int, size: int) -> bytes:
        """Fewer bytes at the end of the file."""
        ...

    def write(self, parts: Sequence[Buffer], at: int, *, sync: bool = False) -> None:
        """All of them, one after the other from `at` on; with `sync`, on the disk when it returns."""
        ...

    def sync(self) -> None: ...

    def truncate(self, size: int) -> None: ...

    def allocate(self, size: int) -> None:
        """Room for that many bytes from the beginning on, without writing them."""
        ...

    def drop_cache(self, at: int, size: int) -> None:
        """The kernel may forget these pages. No effect in memory."""
        ...

    def close(self) -> None: ...


class Disk(Protocol):
    """Names are paths below the folder, with `/`."""

    recycles: bool  # writing over allocated blocks needs no new ones
    prefills: bool  # writing to a block again costs less than the first time

    def open(self, name: str, *, create: bool = False) -> DiskFile:
        """FileNotFoundError when it is not there. `create` also makes the folder it lies in."""
        ...

    def names(self, folder: str = "") -> list[str]:
        """What lies directly in the folder; nothing when there is no such folder."""
        ...

    def rename(self, name: str, new_name: str) -> None:
        """A file or a folder; makes the folder of `new_name`. FileNotFoundError when it is not there."""
        ...

    def remove(self, name: str) -> None:
        """A file, or a folder with everything in it; nothing when it is not there."""
        ...

    def sync_folder(self, folder: str = "") -> None:
        """The names of the files in it survive a power failure."""
        ...

    def free_bytes(self) -> int | None:
        """None: not limited."""
        ...
