"""Where an unprivileged user can go, and what it gets."""

import os
from pathlib import Path

import pytest

from stack import account
from stack.account import can_reach, choose_shelter, copy_readable, may_enter, shelter_of
from stack.config import StackError
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


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(account, "SHELTERS", tmp_path / "shelters")
    monkeypatch.setattr(account, "prepare_shelter", shelter_of)  # only root may
    monkeypatch.setattr(account, "can_reach", lambda folder, _account: folder.stat().st_mode & 0o1 != 0)
    home = tmp_path / "home"
    (home / "data").mkdir(parents=True)
    return home


def choose(home: Path, before: Path | None, mode: int, who: Account | None = STRANGER) -> Path | None:
    home.chmod(mode)
    return choose_shelter(home, home / "data", None if before is None else str(before), who)


def test_a_shelter_is_for_homes_that_cannot_be_reached(home: Path) -> None:
    assert choose(home, None, 0o711) is None
    assert choose(home, None, 0o700) == shelter_of(home)
    assert choose(home, shelter_of(home), 0o711) is None, "nothing was stored there"


def test_databases_in_a_shelter_are_found_there_when_the_home_can_be_reached(home: Path) -> None:
    shelter = shelter_of(home)
    (shelter / "postgres-2").mkdir(parents=True)
    assert choose(home, shelter, 0o711) == choose(home, shelter, 0o700) == shelter
    with pytest.raises(StackError, match="run it as root"):
        choose(home, shelter, 0o711, who=None)


def test_databases_in_the_home_are_not_replaced_by_empty_ones_in_a_shelter(home: Path) -> None:
    (home / "data" / "primary.json").touch()
    assert choose(home, None, 0o711) is None
    with pytest.raises(StackError, match="can no longer reach"):
        choose(home, None, 0o700)


def test_databases_of_a_home_that_got_another_name_are_not_replaced_by_empty_ones(home: Path) -> None:
    before = shelter_of(home.with_name("earlier"))
    before.mkdir(parents=True)
    (before / "primary.json").touch()
    with pytest.raises(StackError, match=f"mv {before} {shelter_of(home)}"):
        choose(home, before, 0o711)
    before.rename(shelter_of(home))
    assert choose(home, before, 0o711) == shelter_of(home)


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
