"""The data folders of brokers: which of two copies is the older one. No IO.

A folder counts its starts and the frames of its journal. One that comes with less than it had before was restored from
a backup, or is a copy that runs beside the original: it has forgotten votes and acknowledged messages.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from db.broker_registry import StoredFolder
from myqueue.protocol.errors import StaleDataFolder
from myqueue.protocol.internal import BrokerRegistration

SEQUENCE_INTERVAL_S = 30.0  # a sequence alone is stored this often at most


def folder_of(request: BrokerRegistration, broker_id: int) -> StoredFolder | None:
    """None for a broker of a release that does not count its starts."""
    if "starts" not in request or "session" not in request or "sequence" not in request:
        return None
    return StoredFolder(request["incarnation"], broker_id, request["starts"], request["session"], request["sequence"])


def check_folder(folder: StoredFolder | None, known: StoredFolder | None) -> None:
    """Raises when what is known refutes the folder. The process that registered last may always register again."""
    if folder is None or known is None or folder.session == known.session:
        return
    if folder.starts > known.starts and folder.sequence >= known.sequence:
        return
    raise StaleDataFolder(details={"starts": known.starts, "sequence": known.sequence})


@dataclass(slots=True)
class _Known:
    folder: StoredFolder
    stored: StoredFolder | None  # None: PostgreSQL may hold something else
    stored_s: float


class DataFolders:
    """As known in memory. Not thread-safe: its owner has a lock."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def load(self, folders: Iterable[StoredFolder], now_s: float) -> None:
        self._known = {folder.incarnation: _Known(folder, folder, now_s) for folder in folders}

    def check(self, folder: StoredFolder | None) -> None:
        known = None if folder is None else self._known.get(folder.incarnation)
        check_folder(folder, None if known is None else known.folder)

    def registered(self, folder: StoredFolder | None) -> None:
        if folder is None:
            return
        known = self._known.get(folder.incarnation)
        if known is None:
            self._known[folder.incarnation] = _Known(folder, None, 0.0)
        else:
            known.folder = replace(folder, sequence=max(folder.sequence, known.folder.sequence))

    def is_registered(self, incarnation: str, session: str | None) -> bool:
        """False when another process has registered with this folder, or with a copy of it, since."""
        known = self._known.get(incarnation)
        return session is None or known is None or known.folder.session == session

    def advanced(self, incarnation: str, sequence: int | None) -> None:
        known = self._known.get(incarnation)
        if known is not None and sequence is not None and sequence > known.folder.sequence:
            known.folder = replace(known.folder, sequence=sequence)

    def take_changes(self, now_s: float) -> list[StoredFolder]:
        """Starts at once, sequences with them or now and then. The caller stores them, or calls `put_back`."""
        taken = []
        for known in self._known.values():
            folder, stored = known.folder, known.stored
            has_started = stored is None or (folder.starts, folder.session) != (stored.starts, stored.session)
            if has_started or (folder != stored and now_s - known.stored_s >= SEQUENCE_INTERVAL_S):
                taken.append(folder)
                known.stored, known.stored_s = folder, now_s
        return taken

    def put_back(self, folders: Iterable[StoredFolder]) -> None:
        for folder in folders:
            self._known[folder.incarnation].stored = None
