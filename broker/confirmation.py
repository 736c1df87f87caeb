"""Whether this broker's data folder is the latest one, or an older copy of it.

A folder that was restored from a backup has forgotten votes and acknowledged entries: a broker must not serve its
groups with it. The catalog confirms the folder, or so many brokers that no majority can know better; either refutes it.
"""

import secrets
import threading
from collections.abc import Iterable

from broker.partitions import Partitions
from broker.peers.handshake import DataFolder
from broker.storage.store import Store
from service.logs import Log as Logger


class Confirmation:
    """Any thread may call it. What concerns another incarnation than the current one came late and is ignored."""

    def __init__(self, incarnation: int) -> None:
        self._lock = threading.Lock()
        self._begin(incarnation)
        self._brokers: set[int] = set()

    def _begin(self, incarnation: int) -> None:
        self._incarnation = incarnation
        self._accepted_by: set[int] = set()
        self._registered = False
        self._unreachable = False
        self._refuted: str | None = None

    def renewed(self, incarnation: int) -> None:
        """The broker continues under a new incarnation."""
        with self._lock:
            self._begin(incarnation)

    def set_brokers(self, own_id: int | None, broker_ids: Iterable[int]) -> None:
        """The other brokers of the cluster, as last known."""
        with self._lock:
            self._brokers = {broker_id for broker_id in broker_ids if broker_id != own_id}

    def registered(self, incarnation: int) -> None:
        with self._lock:
            self._registered |= incarnation == self._incarnation

    def unreachable(self) -> None:
        """The catalog could not be asked: the other brokers decide, or nobody where there are none."""
        with self._lock:
            self._unreachable = True

    def accepted(self, broker_id: int, incarnation: int) -> None:
        """By another broker, in the handshake."""
        with self._lock:
            if incarnation == self._incarnation:
                self._accepted_by.add(broker_id)

    def refuted(self, incarnation: int, reason: str) -> bool:
        """True the first time: the caller makes all replicas suspect and continues under a new incarnation."""
        with self._lock:
            if incarnation != self._incarnation or self._refuted is not None:
                return False
            self._refuted = reason
            return True

    def not_carried_out(self) -> None:
        """The refutation could not be stored: the next one is tried again."""
        with self._lock:
            self._refuted = None

    @property
    def refutation(self) -> str | None:
        return self._refuted

    @property
    def confirmed(self) -> bool:
        """Once confirmed, it stays so unless it is refuted.

        By the catalog, or by a majority of the other brokers: this one's own folder is what is in doubt. A broker that
        has no others is confirmed when the catalog cannot be asked.
        """
        with self._lock:
            if self._refuted is not None:
                return False
            accepted = len(self._accepted_by & self._brokers)
            if self._registered or 2 * accepted > len(self._brokers):
                return True
            return self._unreachable and not self._brokers


class FolderCheck:
    """Opens the replicas when the folder is confirmed; makes them suspect when it is refuted."""

    def __init__(self, store: Store, logger: Logger) -> None:
        self._store = store
        self._logger = logger
        self._session = secrets.randbits(64)
        self._confirmation = Confirmation(int(store.incarnation, 16))
        self._partitions: Partitions | None = None

    def bind(self, partitions: Partitions) -> None:
        self._partitions = partitions

    def folder(self) -> DataFolder:
        return DataFolder(int(self._store.incarnation, 16), self._store.journal.starts, self._session)

    def set_brokers(self, own_id: int | None, broker_ids: Iterable[int]) -> None:
        self._confirmation.set_brokers(own_id, broker_ids)

    def registered(self, incarnation: int) -> None:
        self._confirmation.registered(incarnation)
        self.check()

    def unreachable(self) -> None:
        self._confirmation.unreachable()
        self.check()

    def accepted(self, broker_id: int, incarnation: int) -> None:
        """On the loop, by the handshake with another broker."""
        self._confirmation.accepted(broker_id, incarnation)

    def refuted_by_peer(self, incarnation: int, reason: str) -> None:
        """On the loop, which must not wait for the disk."""
        threading.Thread(target=self.refuted, args=(incarnation, reason), daemon=True).start()

    def refuted(self, incarnation: int, reason: str) -> None:
        if self._partitions is not None and self._confirmation.refuted(incarnation, reason):
            self._logger.error("the data folder is an older copy: its replicas do not vote", why=reason)
            try:
                self._partitions.refute(f"the data folder is an older copy: {reason}")
            except BaseException:
                self._confirmation.not_carried_out()
                raise
            self._confirmation.renewed(int(self._store.incarnation, 16))

    def check(self) -> None:
        """Now and then, off the loop."""
        if self._partitions is not None and self._confirmation.confirmed:
            self._partitions.serve()
