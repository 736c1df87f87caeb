"""The read managers, known by their heartbeats alone. No IO; `now_s` is an argument."""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from myqueue.protocol.errors import InvalidRequest
from write_manager.liveness import check_liveness

MAX_NAME_CHARS = 200  # as much as is stored
FORGOTTEN_AFTER_TTLS = 10  # long enough for operators to see that one is away


@dataclass(frozen=True, slots=True)
class ReadManager:
    name: str
    endpoint: str
    active: bool
    last_heartbeat_s: float
    stored_active: bool | None  # as PostgreSQL has it; None: it may hold something else


@dataclass(frozen=True, slots=True)
class ReadManagerChanges:
    """Changes that are not stored yet."""

    changed: Sequence[ReadManager]
    forgotten: Sequence[str]

    def __bool__(self) -> bool:
        return bool(self.changed or self.forgotten)


def check_name(name: str) -> None:
    """A name that cannot be stored would fail the transaction for everything else in it."""
    if not 1 <= len(name) <= MAX_NAME_CHARS or not name.isprintable():
        raise InvalidRequest(f"name: must have 1 to {MAX_NAME_CHARS} printable characters")


class ReadManagers:
    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._lock = threading.Lock()
        self._known: dict[str, ReadManager] = {}
        self._swept_s = 0.0

    def load(self, stored: Iterable[tuple[str, str, bool]], now_s: float) -> None:
        """Active ones get a fresh time to live: this process has not received their heartbeats yet."""
        with self._lock:
            self._swept_s = now_s
            for name, endpoint, active in stored:
                known = self._known.get(name)  # also by an earlier load, for an activation that then failed
                loaded = ReadManager(name, endpoint, active, now_s, active)
                self._known[name] = loaded if known is None else replace(known, last_heartbeat_s=now_s)

    def heartbeat(self, name: str, endpoint: str, now_s: float) -> str | None:
        """The previous endpoint, if it changed while the read manager counted as active."""
        with self._lock:
            known = self._known.get(name)
            stored = known.stored_active if known is not None and known.endpoint == endpoint else None
            self._known[name] = ReadManager(name, endpoint, True, now_s, stored)
        return known.endpoint if known is not None and known.endpoint != endpoint and known.active else None

    def has(self, name: str, endpoint: str) -> bool:
        known = self._known.get(name)
        return known is not None and known.endpoint == endpoint

    def leave(self, name: str, now_s: float) -> None:
        """Inactive at once, without waiting for the time to live."""
        with self._lock:
            if name in self._known:
                self._known[name] = replace(self._known[name], active=False, last_heartbeat_s=now_s)

    def sweep(self, now_s: float) -> tuple[str, ...]:
        """Those that have just expired. None expires between two sweeps, so a pause of this process expires none."""
        with self._lock:
            last_s, self._swept_s = self._swept_s, now_s
            active = {manager.name: manager.last_heartbeat_s for manager in self._known.values() if manager.active}
            liveness = check_liveness(active, now_s, last_s, self._ttl_s)
            for name in liveness.expired:
                self._known[name] = replace(self._known[name], active=False)
            for name, last_heartbeat_s in liveness.last_heartbeats_s.items():
                self._known[name] = replace(self._known[name], last_heartbeat_s=last_heartbeat_s)
        return liveness.expired

    def active(self) -> list[ReadManager]:
        return [manager for manager in self.known() if manager.active]

    def known(self) -> list[ReadManager]:
        with self._lock:
            return [self._known[name] for name in sorted(self._known)]

    def take_changes(self, now_s: float, *, stamp: bool) -> ReadManagerChanges:
        """The caller stores them and calls `changes_stored`. To stamp: active ones too, for their last heartbeat."""
        long_s = FORGOTTEN_AFTER_TTLS * self._ttl_s
        with self._lock:
            known = list(self._known.values())
            changed = [m for m in known if m.active != m.stored_active or (stamp and m.active)]
            forgotten = [m.name for m in known if not m.active and now_s - m.last_heartbeat_s > long_s]
            for name in (*(manager.name for manager in changed), *forgotten):
                # Until the commit is known, either value may be in PostgreSQL.
                self._known[name] = replace(self._known[name], stored_active=None)
        return ReadManagerChanges(changed, forgotten)

    def changes_stored(self, changes: ReadManagerChanges) -> None:
        """Heartbeats may have arrived meanwhile: one that moved is stored again, one that is back is not forgotten."""
        with self._lock:
            for manager in changes.changed:
                known = self._known[manager.name]
                if known.endpoint == manager.endpoint:
                    self._known[manager.name] = replace(known, stored_active=manager.active)
            for name in changes.forgotten:
                if not self._known[name].active:
                    del self._known[name]
