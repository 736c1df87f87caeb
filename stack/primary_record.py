"""The durable record beside the data: which PostgreSQL server is the primary, of which database, on which timeline.

It is written before anything that it describes happens, so that a runner that was killed goes on where it was.
"""

import json
import os
import struct
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from stack.config import StackError

FILE = "primary.json"
# The beginning of global/pg_control, the same in PostgreSQL 11 to 18: identifier, version, catalog version, state,
# time, position of the checkpoint; then the checkpoint: redo position, timeline.
CONTROL = struct.Struct("<QIII4xqQQI")
CONTROL_VERSIONS = range(1100, 3000)

Folder = Literal["missing", "unreadable", "standby", "primary"]


@dataclass(frozen=True)
class Promotion:
    """A decision that is synced before it is carried out."""

    name: str  # the standby that becomes the primary
    timeline: int  # of the primary that it replaces


@dataclass(frozen=True)
class PrimaryRecord:
    system_identifier: int
    primary: str
    timeline: int
    promoted_at: float | None = None  # the last promotion that no person asked for, seconds since 1970
    promotion: Promotion | None = None  # in progress


@dataclass(frozen=True)
class DataFolder:
    """What a server's folder holds, without its server."""

    state: Folder
    system_identifier: int | None = None  # None: not to be read; the server itself says why when it starts
    timeline: int = 0


class RecordRefused(StackError):
    """There is data without a record, and none can be derived from it; or the record cannot be read."""


def read_record(folder: Path) -> PrimaryRecord | None:
    path = folder / FILE
    try:
        stored: dict[str, Any] = json.loads(path.read_text())
        promotion = stored.pop("promotion")
        return PrimaryRecord(**stored, promotion=None if promotion is None else Promotion(**promotion))
    except FileNotFoundError:
        return None
    except OSError as error:  # a disk that fails, too many open files: not the same as no record
        raise RecordRefused(f"{path} cannot be read ({error}); see the rights and the disk") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecordRefused(f"{path} cannot be read ({error}); see that one server is the primary, remove it") from None


def save_record(folder: Path, record: PrimaryRecord) -> None:
    """Durable when this returns."""
    temporary = folder / f".{FILE}.new"
    with temporary.open("w") as file:
        json.dump(asdict(record), file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / FILE)
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_folder(data: Path) -> DataFolder:
    """Data without its version or its control file is gone: PostgreSQL cannot start from it."""
    control = data / "global" / "pg_control"
    try:
        if not (data / "PG_VERSION").exists() or not control.exists():
            return DataFolder("missing")
        state: Folder = "standby" if (data / "standby.signal").exists() else "primary"
    except OSError:  # missing rights, a disk that fails: not the same as gone
        return DataFolder("unreadable")
    try:
        identifier, version, *_, timeline = CONTROL.unpack(control.read_bytes()[: CONTROL.size])
    except (OSError, struct.error):
        return DataFolder(state)
    return DataFolder(state, identifier, timeline) if version in CONTROL_VERSIONS else DataFolder(state)


def derive_record(folders: dict[str, DataFolder]) -> PrimaryRecord | None:
    """The record of a stack from before there were records; None when there is no data at all.

    The primary is the server whose data is not a standby's. If all that is left are standbys, it is the one whose data
    is gone: it must not become an empty database.
    """
    if all(folder.state == "missing" for folder in folders.values()):
        return None
    identifiers = {folder.system_identifier for folder in folders.values() if folder.system_identifier is not None}
    if len(identifiers) != 1:
        raise RecordRefused(
            "the data folders belong to different databases, or none can be read; remove those that are wrong"
        )
    [identifier] = identifiers
    timeline = max(folder.timeline for folder in folders.values())
    primaries = [name for name, folder in folders.items() if folder.state == "primary"]
    unread = [name for name, folder in folders.items() if folder.state == "unreadable"]
    if len(primaries) > 1:  # the timelines decide
        unread += [name for name in primaries if folders[name].system_identifier is None]
    if unread:
        raise RecordRefused(
            f"the data of {', '.join(unread)} cannot be read, and may be the primary's: see the rights and the disk"
        )
    gone = [name for name, folder in folders.items() if folder.state == "missing"]
    # Two that are no standbys: a promotion begins a higher timeline, and the lower one was replaced.
    candidates = sorted(primaries, key=lambda name: -folders[name].timeline) or gone
    if not candidates:
        raise RecordRefused("all servers are standbys, and nothing says of whom; remove standby.signal of the furthest")
    return PrimaryRecord(identifier, candidates[0], timeline)
