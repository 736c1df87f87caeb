"""Open files are bounded; a pinned one stays readable whatever happens to its name."""

import pytest

from broker.storage.memory_disk import MemoryDisk
from broker.storage.open_files import OpenFiles


@pytest.fixture
def files() -> OpenFiles:
    return OpenFiles(MemoryDisk(None), limit=3)


def put(files: OpenFiles, name: str, data: bytes) -> None:
    with files.pinned(name, create=True) as file:
        file.write([data], 0)


def get(files: OpenFiles, name: str) -> bytes:
    with files.pinned(name) as file:
        return file.read(0, 100)


def test_the_least_recently_used_is_closed(files: OpenFiles) -> None:
    for number in range(10):
        put(files, f"f/{number}", b"%d" % number)
        assert len(files) <= 3
    assert [get(files, f"f/{number}") for number in range(10)] == [b"%d" % number for number in range(10)]


def test_pinned_files_stay_open_beyond_the_limit(files: OpenFiles) -> None:
    for number in range(5):
        put(files, f"f/{number}", b"%d" % number)
    pins = [files.pinned(f"f/{number}") for number in range(5)]
    opened = [pin.__enter__() for pin in pins]
    assert len(files) == 5
    assert [file.read(0, 1) for file in opened] == [b"0", b"1", b"2", b"3", b"4"]
    for pin in pins:
        pin.__exit__(None, None, None)
    assert len(files) == 3


def test_a_removed_file_is_readable_until_it_is_let_go(files: OpenFiles) -> None:
    put(files, "f/a", b"old")
    with files.pinned("f/a") as old:
        files.remove("f/a")
        with pytest.raises(FileNotFoundError), files.pinned("f/a"):
            pass
        put(files, "f/a", b"new")
        assert old.read(0, 3) == b"old"
        assert get(files, "f/a") == b"new"
    assert get(files, "f/a") == b"new"
    assert len(files) == 1


def test_a_file_opened_while_its_name_is_removed_is_not_kept() -> None:
    disk = MemoryDisk(None)
    files = OpenFiles(disk)
    put(files, "f/a", b"old")
    files.close()
    opening = disk.open

    def open_and_lose(name: str, *, create: bool = False) -> object:
        disk.open = opening  # type: ignore[method-assign]
        opened = opening(name, create=create)
        files.remove("f/a")
        return opened

    disk.open = open_and_lose  # type: ignore[method-assign,assignment]
    assert get(files, "f/a") == b"old"
    assert len(files) == 0
    put(files, "f/a", b"new")
    assert get(files, "f/a") == b"new"


def test_forgetting_a_folder_closes_what_is_in_it(files: OpenFiles) -> None:
    put(files, "f/1/a", b"a")
    put(files, "f/10/a", b"b")
    files.forget("f/1")
    assert len(files) == 1
    assert get(files, "f/1/a") == b"a"
