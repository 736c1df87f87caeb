"""Which read managers there are, judged by their heartbeats. Values in, decisions out; the caller holds the lock."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from myqueue.protocol.errors import InvalidRequest
from write_manager.liveness import judge

MAX_NAME_CHARS = 200  # as much as is stored
FORGOTTEN_AFTER_TTLS = 10  # long enough for people to see that one is away


@dataclass(frozen=True, slots=True)
class ReadManager:
    name: str
    endpoint: str
    active: bool
    heard_s: float
    stored: bool | None  # whether it is active, as PostgreSQL has it; None: it may hold something else


def check_name(name: str) -> None:
    """One that cannot be stored would keep everything else of its transaction from being stored."""
    if not 1 <= len(name) <= MAX_NAME_CHARS or not name.isprintable():
        raise InvalidRequest(f"name: must have 1 to {MAX_NAME_CHARS} printable characters")


class ReadManagers:
    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._known: dict[str, ReadManager] = {}

    def load(self, stored: Iterable[tuple[str, str, bool]], now_s: float) -> None:
        """Those that were active get a fresh time to live: this process has not listened to them yet."""
        for name, endpoint, active in stored:
            self._known.setdefault(name, ReadManager(name, endpoint, active, now_s, active))

    def heard(self, name: str, endpoint: str, now_s: float) -> str | None:
        """Where it was until now, if it speaks from elsewhere although nobody has missed it yet."""
        known = self._known.get(name)
        stored = known.stored if known is not None and known.endpoint == endpoint else None
        self._known[name] = ReadManager(name, endpoint, True, now_s, stored)
        return known.endpoint if known is not None and known.endpoint != endpoint and known.active else None

    def endpoint(self, name: str) -> str | None:
        known = self._known.get(name)
        return None if known is None else known.endpoint

    def left(self, name: str, now_s: float) -> None:
        """It said so itself: nobody waits until it is missed."""
        if name in self._known:
            self._known[name] = replace(self._known[name], active=False, heard_s=now_s)

    def sweep(self, now_s: float, last_sweep_s: float) -> tuple[str, ...]:
        """Those that have just died. Nobody dies between two sweeps, so that a paused process misses nobody."""
        active = {manager.name: manager.heard_s for manager in self._known.values() if manager.active}
        verdict = judge(active, now_s, last_sweep_s, self._ttl_s)
        for name in verdict.died:
            self._known[name] = replace(self._known[name], active=False)
        for name, heard_s in verdict.heard_s.items():
            self._known[name] = replace(self._known[name], heard_s=heard_s)
        return verdict.died

    def active(self) -> list[ReadManager]:
        return [self._known[name] for name in sorted(self._known) if self._known[name].active]

    def to_store(self, *, stamp: bool) -> list[ReadManager]:
        """Those that PostgreSQL may know otherwise; to stamp, also those that are simply there."""
        return [
            manager
            for manager in self._known.values()
            if manager.active != manager.stored or (stamp and manager.active)
        ]

    def to_forget(self, now_s: float) -> list[str]:
        long_s = FORGOTTEN_AFTER_TTLS * self._ttl_s
        return [m.name for m in self._known.values() if not m.active and now_s - m.heard_s > long_s]

    def storing(self, managers: Sequence[ReadManager], forgotten: Sequence[str]) -> None:
        """Until the transaction is known to have committed, either value may be in PostgreSQL."""
        for name in (*(manager.name for manager in managers), *forgotten):
            self._known[name] = replace(self._known[name], stored=None)

    def stored(self, managers: Sequence[ReadManager], forgotten: Sequence[str]) -> None:
        """Heartbeats may have come meanwhile: who moved is stored again, and who is back is not forgotten."""
        for manager in managers:
            known = self._known[manager.name]
            if known.endpoint == manager.endpoint:
                self._known[manager.name] = replace(known, stored=manager.active)
        for name in forgotten:
            if not self._known[name].active:
                del self._known[name]
