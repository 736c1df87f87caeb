"""The unprivileged user of PostgreSQL and nginx's workers when the stack runs as root, and the folder of its files."""

import hashlib
import os
import pwd
import shutil
import stat
from pathlib import Path

from stack.config import StackError
from stack.process import Account

SHELTERS = Path("/var/tmp")  # noqa: S108


def choose_account() -> Account | None:
    """None unless this process is root. The user needs a name: PostgreSQL looks it up."""
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError:
        raise StackError("PostgreSQL refuses to run as root and this machine has no user 'nobody'", 2) from None
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)


def may_enter(status: os.stat_result, account: Account) -> bool:
    """Whether the mode bits of a folder let the user through."""
    if status.st_uid == account.uid:
        return bool(status.st_mode & stat.S_IXUSR)
    if status.st_gid == account.gid:
        return bool(status.st_mode & stat.S_IXGRP)
    return bool(status.st_mode & stat.S_IXOTH)


def can_reach(folder: Path, account: Account | None) -> bool:
    """Whether the user can traverse every parent of a folder, and the folder itself when it exists."""
    if account is None:
        return True
    chain = [folder, *folder.parents]
    return all(may_enter(step.stat(), account) for step in chain if step.exists())


def shelter_of(home: Path) -> Path:
    return SHELTERS / f"myqueue-{hashlib.sha256(os.fsencode(home)).hexdigest()[:12]}"


def prepare_shelter(home: Path) -> Path:
    """A folder of root that others can traverse but not change. A folder of another owner is refused."""
    shelter = shelter_of(home)
    shelter.mkdir(mode=0o711, exist_ok=True)
    status = shelter.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != 0:
        raise StackError(f"{shelter} exists and is not a folder of root; remove it", 2)
    shelter.chmod(0o711)
    return shelter


def give(path: Path, account: Account | None) -> None:
    if account is not None:
        os.chown(path, account.uid, account.gid)


def make_folder(path: Path, account: Account | None) -> Path:
    path.mkdir(mode=0o700, exist_ok=True)
    give(path, account)
    return path


def write_for(account: Account | None, path: Path, text: str) -> None:
    """A file that only the user can read."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    temporary.touch(mode=0o600)
    give(temporary, account)
    temporary.write_text(text)
    temporary.replace(path)


def copy_readable(source: Path, target: Path) -> None:
    """Copy a tree so that every user can read it, whatever the original's permissions."""
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(source, partial, symlinks=True)
    for path in [partial, *partial.rglob("*")]:
        if path.is_symlink():
            continue
        executable = path.is_dir() or path.stat().st_mode & stat.S_IXUSR
        path.chmod(0o755 if executable else 0o644)
    partial.rename(target)
