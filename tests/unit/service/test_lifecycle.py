"""A process stops as a whole, also when one of its parts fails to."""

import asyncio
import logging

import structlog

from service.lifecycle import Process

LOG = structlog.wrap_logger(None, wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


class RecordedPart:
    def __init__(self, name: str, said: list[str]) -> None:
        self._name, self._said = name, said

    def start(self) -> None:
        self._said.append(f"start {self._name}")

    def stop(self) -> None:
        self._said.append(f"stop {self._name}")


class PartThatFailsToStop(RecordedPart):
    def stop(self) -> None:
        super().stop()
        raise TimeoutError("cursors")


def test_every_part_stops_when_one_fails_to() -> None:
    said: list[str] = []
    process = Process(LOG, drain_timeout_s=0)
    process._parts = [RecordedPart("lease", said), PartThatFailsToStop("cursors", said)]
    failures = asyncio.run(process._stop())
    assert said == ["stop cursors", "stop lease"]
    assert [str(failure) for failure in failures] == ["cursors"]
