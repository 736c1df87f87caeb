"""Opens the data file, or puts one aside that cannot be relied on and starts without it.

What was in it is on the other replicas; this broker comes back under another incarnation, as one without data.
"""

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import apsw

from broker.storage import groups
from broker.storage.database import CONDEMNED, FILE, Database, StorageDamaged
from broker.storage.groups import Corrupted
from service.logs import Log as Logger

_DAMAGED = ".damaged-"


def open_database(
    folder: Path | None, logger: Logger, *, read_connections: int, observe_commit: Callable[[float], None]
) -> Database:
    def attempt() -> Database:
        database = Database(folder, read_connections=read_connections, observe_commit=observe_commit)
        try:
            with database.reading() as connection:
                groups.load(connection)
        except (Corrupted, apsw.CorruptError) as error:
            database.close()
            raise StorageDamaged(str(error)) from error
        return database

    try:
        return attempt()
    except StorageDamaged as damage:
        if folder is None:
            raise
        logger.exception("the data file is damaged; the broker starts without it", damage=str(damage))
        put_aside(folder)
        return attempt()


def put_aside(folder: Path) -> None:
    """Keeps one copy for a person to look at, the last one, as long as there is room for it."""
    for old in folder.glob(f"{FILE}*{_DAMAGED}*"):
        old.unlink()
    size = sum(path.stat().st_size for path in folder.glob(f"{FILE}*"))
    keep = shutil.disk_usage(folder).free > size
    end = f"{_DAMAGED}{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    for path in list(folder.glob(f"{FILE}*")):
        if keep and not path.name.endswith("-shm"):
            path.rename(path.with_name(path.name + end))
        else:
            path.unlink()
    (folder / CONDEMNED).unlink(missing_ok=True)
