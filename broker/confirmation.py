"""Whether this broker's data folder is the latest one, or an older copy of it. No IO.

A folder that was restored from a backup has forgotten votes and acknowledged entries: a broker must not serve its
groups with it. The catalog confirms the folder, or so many brokers that no majority can know better; either refutes it.
"""

import threading
from collections.abc import Iterable


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

    @property
    def refutation(self) -> str | None:
        return self._refuted

    @property
    def confirmed(self) -> bool:
        """Once confirmed, it stays so unless it is refuted. A broker alone is confirmed by the catalog only."""
        with self._lock:
            if self._refuted is not None:
                return False
            accepted = len(self._accepted_by & self._brokers)
            return self._registered or (accepted > 0 and 2 * (accepted + 1) > len(self._brokers) + 1)
