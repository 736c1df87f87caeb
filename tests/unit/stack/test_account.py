"""Where an unprivileged user can go, and what it gets."""

import os
from pathlib import Path

import pytest

from stack.account import can_reach, copy_readable, may_enter, shelter_of
from stack.process import Account

STRANGER = Account("stranger", 64_000, 64_000)


def status(mode: int, uid: int = 0, gid: int = 0) -> os.stat_result:
    return os.stat_result((0o040000 | mode, 0, 0, 0, uid, gid, 0, 0, 0, 0))


@pytest.mark.parametrize(
    ("folder", "allowed"),
    [
        (status(0o755), True),
        (status(0o711), True),
        (status(0o700), False),
        (status(0o754), False),
        (status(0o700, uid=STRANGER.uid), True),
        (status(0o011, uid=STRANGER.uid), False),
        (status(0o710, gid=STRANGER.gid), True),
        (status(0o701, gid=STRANGER.gid), False),
    ],
)
def test_mode_bits(folder: os.stat_result, allowed: bool) -> None:
    assert may_enter(folder, STRANGER) is allowed


def test_one_closed_folder_on_the_way_is_enough(tmp_path: Path) -> None:
    inner = tmp_path / "closed" / "open"
    inner.mkdir(parents=True)
    assert can_reach(inner, None)
    (tmp_path / "closed").chmod(0o700)
    assert not can_reach(inner, STRANGER)
    assert not can_reach(inner / "not" / "there" / "yet", STRANGER)


def test_each_home_has_its_own_shelter() -> None:
    assert shelter_of(Path("/a")) == shelter_of(Path("/a"))
    assert shelter_of(Path("/a")) != shelter_of(Path("/b"))


def test_a_copy_is_readable_whatever_the_original_was(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "bin").mkdir(parents=True)
    (source / "bin" / "program").write_text("x")
    (source / "bin" / "program").chmod(0o700)
    (source / "data").write_text("y")
    (source / "data").chmod(0o600)
    copy_readable(source, tmp_path / "copy")
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "copy").rglob("*")}
    assert modes == {"bin": 0o755, "program": 0o755, "data": 0o644}
