"""What the listings ask PostgreSQL."""

from collections.abc import Iterator
from typing import Any, cast
from uuid import uuid4

import pytest
from sqlalchemy import Select
from sqlalchemy.orm import Session

from db.models import PartitionStatsHistoryRow
from db.stats_listings import LISTINGS
from db.stats_points import points_of
from myqueue.protocol import routes
from myqueue.protocol.models import MAX_OFFSET
from myqueue.protocol.stats_queries import AskPartitionStats


class Statements:
    """A session that finds nothing, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def scalars(self, statement: Select[Any]) -> "Statements":
        self.asked.append(str(statement))
        return self

    execute = scalars

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def all(self) -> list[Any]:
        return []


def test_the_last_points_are_found_without_a_look_at_the_others() -> None:
    """A year of history has thousands of points of each partition. Which partitions there are, is known without it."""
    statements = Statements()
    points_of(cast(Session, statements), PartitionStatsHistoryRow, [(uuid4(), 0)], AskPartitionStats(history=5), 0)
    [asked] = statements.asked
    assert asked.count("FROM partition_stats_history") == 1, "those of the limit"
    assert "LIMIT" in asked[asked.index("FROM partition_stats_history") :]


@pytest.mark.parametrize(
    ("route", "query"),
    [
        (routes.LIST_CONSUMERS, {"active_since": str(MAX_OFFSET)}),
        (routes.LIST_RUNS, {"from": str(MAX_OFFSET // 1000 - 1), "to": str(MAX_OFFSET // 1000)}),
        (routes.TOPIC_STATS, {"to": str(MAX_OFFSET // 1000)}),
    ],
)
def test_no_moment_is_too_late(route: routes.Route, query: dict[str, str]) -> None:
    """Python's years end with 9999."""
    statements, listing = Statements(), LISTINGS[route.name]
    listing.read(cast(Session, statements), listing.query.model_validate(query))
    assert len(statements.asked) == 1
