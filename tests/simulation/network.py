"""The links between brokers."""

import random

from tests.simulation.bugs import Profile


class Network:
    """Frames are lost, doubled, held up and overtaken; links break in one direction or both."""

    def __init__(self, rng: random.Random, profile: Profile) -> None:
        self._rng = rng
        self.loss = rng.choice((0.0, 0.01, 0.05))
        self.doubling = rng.choice((0.0, 0.02))
        late = profile in (Profile.AMBUSH, Profile.CONGESTED)
        self.holdup = rng.choice((0.03, 0.1, 0.2) if late else (0.0, 0.01))
        self.blocked: set[tuple[int, int]] = set()
        self.congested: set[tuple[int, int]] = set()

    def delays(self, source: int, target: int) -> list[int]:
        """When each copy arrives, in µs from now."""
        if (source, target) in self.blocked or self._rng.random() < self.loss:
            return []
        copies = 2 if self._rng.random() < self.doubling else 1
        return [self._delay((source, target)) for _ in range(copies)]

    def _delay(self, link: tuple[int, int]) -> int:
        if link in self.congested or self._rng.random() < self.holdup:
            return self._rng.randrange(100_000, 3_000_000)
        return self._rng.randrange(300, 8_000)

    def heal(self) -> None:
        self.loss = self.doubling = self.holdup = 0.0
        self.blocked.clear()
        self.congested.clear()
