"""One public route, as the table of routes has it."""

from dataclasses import dataclass
from typing import Literal

Tier = Literal["read", "write", "broker"]


@dataclass(frozen=True, slots=True)
class Route:
    name: str
    method: str
    path: str  # {parameter} in braces
    tier: Tier  # of the servers behind the load balancer
    summary: str
    request: str | None = None  # name of a model in protocol/models.py or stats_queries.py
    answer: str | None = None  # name of a model in protocol/answers.py or stats_answers.py
    success: tuple[int, ...] = (200,)
    failures: tuple[int, ...] = ()
    head: bool = True  # whether HEAD may replace GET: not where a GET moves a cursor or has no end
    keyed: bool = False  # whether it takes an Idempotency-Key
