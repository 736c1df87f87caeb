"""The query for the last points of history."""

from typing import Any, cast
from uuid import uuid4

from sqlalchemy import Select
from sqlalchemy.orm import Session

from db.models import PartitionStatsHistoryRow
from db.stats_points import points_of
from myqueue.protocol.stats_queries import AskPartitionStats


class Statements:
    """A session that finds nothing, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def scalars(self, statement: Select[Any]) -> "Statements":
        self.asked.append(str(statement))
        return self

    def all(self) -> list[Any]:
        return []


def test_the_last_points_are_found_without_a_look_at_the_others() -> None:
    """A year of history has thousands of points of each partition. Which partitions there are, is known without it."""
    statements = Statements()
    points_of(cast(Session, statements), PartitionStatsHistoryRow, {uuid4()}, 1, AskPartitionStats(history=5), 0)
    [asked] = statements.asked
    assert asked.count("FROM partition_stats_history") == 1, "those of the limit"
    assert "LIMIT" in asked[asked.index("FROM partition_stats_history") :]
