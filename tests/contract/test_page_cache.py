"""The kernel's cache of a data file: what is given up, and that nothing but the cache is."""

import ctypes
import mmap
import os
from pathlib import Path

import pytest
from broker.storage.page_cache import PageCache

from broker.storage import page_cache

PAGE = mmap.PAGESIZE


def cached_pages(path: Path) -> list[bool]:
    """As the kernel says, page by page."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        count = len(mapped) // PAGE
        resident = (ctypes.c_ubyte * count)()
        address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        assert ctypes.CDLL(None).mincore(ctypes.c_void_p(address), ctypes.c_size_t(len(mapped)), resident) == 0
        return [bool(value & 1) for value in resident]


def written(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        os.fsync(file.fileno())


def can_give_up(folder: Path) -> bool:
    """Not in memory, say: there the cache is all there is."""
    path = folder / "tried"
    written(path, bytes(32 << 20))
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return not all(cached_pages(path))


def test_old_pages_are_given_up_and_the_newest_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_cache, "_KEPT_BYTES", 8 << 20)
    monkeypatch.setattr(page_cache, "_STEP_BYTES", 1 << 20)
    if not can_give_up(tmp_path):
        pytest.skip("this file system cannot give up cached pages")
    path = tmp_path / "file"
    data = os.urandom(32 << 20)  # the kernel may keep a few megabytes together
    written(path, data)
    cache = PageCache(path)
    cache.give_up_old()
    cached = cached_pages(path)
    cache.close()
    assert path.read_bytes() == data
    eighth = len(cached) // 8
    assert all(cached[-eighth:])
    assert sum(cached[: 4 * eighth]) < eighth


def test_a_small_file_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(64 * PAGE))
    cache = PageCache(path)
    cache.give_up_old()
    assert all(cached_pages(path))
    cache.close()
