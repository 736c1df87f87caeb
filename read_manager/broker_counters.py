"""Broker counters: the few figures of a broker's metrics that the overview needs, and their rates."""

from collections.abc import Mapping
from dataclasses import dataclass

from service.rate_window import RateWindow

_NAMES = {
    "myqueue_broker_messages_total": "messages_in",
    "myqueue_broker_fetched_messages_total": "messages_out",
    "myqueue_broker_bytes_total": "bytes_in",
    "myqueue_broker_fetched_bytes_total": "bytes_out",
}
_DISK_FREE = "myqueue_broker_disk_free_bytes"
COUNTERS = tuple(_NAMES.values())


@dataclass(frozen=True, slots=True)
class BrokerCounters:
    """A broker of an older release does not have all of them."""

    counts: Mapping[str, float]
    disk_free_bytes: int | None


def parse_counters(exposition: str) -> BrokerCounters:
    """Samples without labels, as prometheus_client writes them."""
    found: dict[str, float] = {}
    for line in exposition.splitlines():
        name, _, value = line.partition(" ")
        if name in _NAMES or name == _DISK_FREE:
            found[_NAMES.get(name, name)] = float(value)
    free = found.pop(_DISK_FREE, None)
    return BrokerCounters(found, None if free is None else int(free))


class BrokerRates:
    """By broker: one that has started again counts from 0, and is left out until its next sample."""

    def __init__(self) -> None:
        self._window: RateWindow[tuple[int, str]] = RateWindow()

    def add(self, now_s: float, counters: Mapping[int, BrokerCounters]) -> None:
        self._window.add(
            now_s,
            {(broker_id, name): count for broker_id, each in counters.items() for name, count in each.counts.items()},
        )

    def rate(self, broker_id: int, counter: str) -> float | None:
        return self._window.rate((broker_id, counter))

    def total(self, broker_ids: list[int], counter: str) -> float | None:
        """Over the brokers whose rate is known; None if it is of none."""
        rates = [rate for broker_id in broker_ids if (rate := self.rate(broker_id, counter)) is not None]
        return sum(rates) if rates else None
