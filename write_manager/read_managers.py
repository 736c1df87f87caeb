"""Which read managers there are, judged by their heartbeats. Values in, decisions out; the caller holds the lock."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from myqueue.protocol.errors import InvalidRequest

MAX_NAME_CHARS = 200  # as much as is stored
FORGOTTEN_AFTER_TTLS = 10  # long enough for people to see that one is away


@dataclass(frozen=True, slots=True)
class ReadManager:
    name: str
    endpoint: str
    active: bool  # as stored
    heard_s: float


def check_name(name: str) -> None:
    """One that cannot be stored would keep everything else of its sweep from being stored."""
    if not 1 <= len(name) <= MAX_NAME_CHARS or not name.isprintable():
        raise InvalidRequest(f"name: must have 1 to {MAX_NAME_CHARS} printable characters")


class ReadManagers:
    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._known: dict[str, ReadManager] = {}

    def load(self, stored: Iterable[tuple[str, str, bool]], now_s: float) -> None:
        """Those that were active get a fresh time to live: this process has not listened to them yet."""
        for name, endpoint, active in stored:
            heard_s = now_s if active else self._silent_since(now_s)
            self._known.setdefault(name, ReadManager(name, endpoint, active, heard_s))

    def heard(self, name: str, endpoint: str, now_s: float) -> str | None:
        """Where it was until now, if it speaks from elsewhere although nobody has missed it yet."""
        known = self._known.get(name)
        self._known[name] = ReadManager(name, endpoint, known is not None and known.active, now_s)
        if known is None or known.endpoint == endpoint or not self._is_alive(known, now_s):
            return None
        return known.endpoint

    def endpoint(self, name: str) -> str | None:
        known = self._known.get(name)
        return None if known is None else known.endpoint

    def left(self, name: str, now_s: float) -> None:
        """It said so itself: nobody waits until it is missed."""
        if name in self._known:
            self._known[name] = replace(self._known[name], heard_s=self._silent_since(now_s))

    def alive(self, now_s: float) -> list[ReadManager]:
        return [self._known[name] for name in sorted(self._known) if self._is_alive(self._known[name], now_s)]

    def to_store(self, now_s: float, *, stamp: bool) -> list[ReadManager]:
        """Those that came or went, with what they are now; to stamp, also those that are simply there."""
        return [
            replace(manager, active=alive)
            for manager in self._known.values()
            if (alive := self._is_alive(manager, now_s)) != manager.active or (stamp and alive)
        ]

    def to_forget(self, now_s: float) -> list[str]:
        long_s = FORGOTTEN_AFTER_TTLS * self._ttl_s
        return [manager.name for manager in self._known.values() if now_s - manager.heard_s > long_s]

    def stored(self, managers: Sequence[ReadManager], forgotten: Sequence[str]) -> None:
        """Heartbeats may have come meanwhile: only what was stored is taken over."""
        for manager in managers:
            self._known[manager.name] = replace(self._known[manager.name], active=manager.active)
        for name in forgotten:
            self._known.pop(name, None)

    def _is_alive(self, manager: ReadManager, now_s: float) -> bool:
        return now_s - manager.heard_s <= self._ttl_s

    def _silent_since(self, now_s: float) -> float:
        return now_s - self._ttl_s - 1.0
