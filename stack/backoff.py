"""When a dead service is started again: after one second, later each time it dies young."""

from dataclasses import dataclass

FIRST_S = 1.0
LONGEST_S = 15.0
STABLE_S = 3.0


@dataclass(frozen=True)
class Backoff:
    """`early_deaths` in a row: the service did not stay ready for STABLE_S."""

    early_deaths: int = 0

    def after_death(self, ready_for_s: float) -> "Backoff":
        return Backoff(0) if ready_for_s >= STABLE_S else Backoff(self.early_deaths + 1)

    @property
    def delay_s(self) -> float:
        # The exponent is capped because a float overflows long before a person looks.
        return min(LONGEST_S, FIRST_S * 2.0 ** min(max(0, self.early_deaths - 1), 10))
