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


def choose_shelter(home: Path, inside: Path, before: str | None, account: Account | None) -> Path | None:
    """Where the unprivileged user's files are to be; None: in the home.

    `inside`: where databases in the home are; `before`: the shelter of the last start. Rights that were changed since
    then do not make an empty database beside the one that exists.
    """
    shelter = shelter_of(home)
    if before is not None:
        if _has_databases(shelter):
            if account is None:
                raise StackError(f"this stack's databases are in {shelter}, because root started it: run it as root", 2)
            return prepare_shelter(home)
        if _has_databases(Path(before)):
            raise StackError(
                f"this stack's databases are in {before}, because its folder had another name; move them: "
                f"mv {before} {shelter}",
                2,
            )
    if can_reach(home, account):
        return None
    if before is None and _has_databases(inside):
        raise StackError(
            f"this stack's databases are in {inside}, which the user '{account and account.name}' can no longer reach: "
            "let others enter (chmod o+x) all folders above it",
            2,
        )
    return prepare_shelter(home)


def _has_databases(folder: Path) -> bool:
    return any((folder / name).exists() for name in ("primary.json", "postgres-1", "postgres-2", "postgres-3"))


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
