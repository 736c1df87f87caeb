"""Which processes work in a server's folder: it is dead when there is none."""

import asyncio
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from stack.process import kill_servers_in, servers_in


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Named through a link, as a home on another disk often is."""
    (tmp_path / "disk" / "data").mkdir(parents=True)
    (tmp_path / "home").symlink_to(tmp_path / "disk")
    return tmp_path / "home" / "data"


@pytest.fixture
def server(folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(["/bin/sleep", "60"], cwd=folder) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_server_is_found_also_behind_a_link_and_in_a_folder_that_was_removed(
    folder: Path, server: "subprocess.Popen[bytes]"
) -> None:
    assert servers_in(folder, "sleep") == [server.pid]
    assert servers_in(folder, "postgres") == []
    shutil.rmtree(folder)
    assert servers_in(folder, "sleep") == [server.pid]


def test_what_works_in_its_folder_is_killed(folder: Path, server: "subprocess.Popen[bytes]") -> None:
    assert asyncio.run(kill_servers_in(folder, "sleep"))
    assert server.wait(10) == -signal.SIGKILL
