"""Positioned reads and writes on a file descriptor, with the errors of the `Disk` seam."""

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from broker.storage.disk import DiskError, NoSpace
from broker.storage.record import Buffer

_MAX_PARTS = os.sysconf("SC_IOV_MAX")


@contextmanager
def disk_errors(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise disk_error(error, name) from error


def disk_error(error: OSError, name: str) -> NoSpace | DiskError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpace(f"{name}: {error.strerror}")
    return DiskError(f"{name}: {error}")


def read_at(descriptor: int, at: int, size: int) -> bytes:
    data = os.pread(descriptor, size, at)
    if len(data) == size or not data:
        return data
    parts = [data]
    done = len(data)
    while done < size and (data := os.pread(descriptor, size - done, at + done)):
        parts.append(data)
        done += len(data)
    return b"".join(parts)


def write_at(descriptor: int, parts: Sequence[Buffer], at: int, size: int, *, sync: bool) -> None:
    """`size` bytes in all. One call with RWF_DSYNC gives up the interpreter's lock once, two calls twice."""
    if len(parts) <= _MAX_PARTS:
        written = os.pwritev(descriptor, parts, at, os.RWF_DSYNC if sync else 0)
        if written == size:
            return
    else:
        written = 0
    _write_rest(descriptor, parts, at, written)
    if sync:
        os.fdatasync(descriptor)


def _write_rest(descriptor: int, parts: Sequence[Buffer], at: int, written: int) -> None:
    """After `written` bytes of them."""
    rest = [memoryview(part) for part in parts]
    first = 0
    skip = written
    while True:
        while first < len(rest) and skip >= len(rest[first]):
            skip -= len(rest[first])
            first += 1
        if first == len(rest):
            return
        rest[first] = rest[first][skip:]
        skip = os.pwritev(descriptor, rest[first : first + _MAX_PARTS], at + written)
        written += skip
