"""One run as data: results, systems and machine; to and from JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.goals import Outcome, judge
from benchmarks.measurement import Figure, Result, SystemNote

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Report:
    started: str  # ISO 8601, UTC
    quick: bool
    seconds: float  # of one measurement
    machine: Mapping[str, Any]
    systems: Sequence[SystemNote]
    results: Sequence[Result]

    @property
    def outcomes(self) -> list[Outcome]:
        return judge(self.results)

    @property
    def failed(self) -> list[Result]:
        return [result for result in self.results if result.error is not None]

    def title_of(self, system: str) -> str:
        return next((note.title for note in self.systems if note.key == system), system)

    def as_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "started": self.started,
            "quick": self.quick,
            "seconds": self.seconds,
            "machine": dict(self.machine),
            "systems": [asdict(note) for note in self.systems],
            "results": [asdict(result) for result in self.results],
            "goals": [
                {
                    "text": outcome.goal.text,
                    "limit": outcome.goal.limit,
                    "at_most": outcome.goal.at_most,
                    "value": outcome.value,
                    "verdict": outcome.verdict,
                }
                for outcome in self.outcomes
            ],
        }


def report_from_json(body: Mapping[str, Any]) -> Report:
    if body.get("format") != FORMAT:
        raise ValueError(f"not a benchmark report of format {FORMAT}")
    results = [
        Result(**{**entry, "figure": None if entry["figure"] is None else Figure(**entry["figure"])})
        for entry in body["results"]
    ]
    systems = [SystemNote(**entry) for entry in body["systems"]]
    return Report(body["started"], body["quick"], body["seconds"], body["machine"], systems, results)
