"""Ranges of offsets: which a read or a micro-batch takes, and how they are cut into Spark's partitions. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from pyspark.sql.datasource import InputPartition

from myqueue.spark.offsets import Place


@dataclass(frozen=True)
class Range(InputPartition):
    """Messages of one partition, for one Spark task: pickled and sent to it."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int  # the first offset that is not read

    @property
    def size(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition} from {self.start} to {self.end}"


def cut(ranges: Iterable[Range], at_least: int | None) -> list[Range]:
    """One for each that holds something; with `at_least`, large ones are cut so that there are about that many."""
    filled = [range_ for range_ in ranges if range_.size > 0]
    if at_least is None or len(filled) >= at_least:
        return filled
    total = sum(range_.size for range_ in filled)
    return [piece for range_ in filled for piece in _pieces(range_, max(1, round(at_least * range_.size / total)))]


def _pieces(range_: Range, count: int) -> list[Range]:
    count = min(count, range_.size)
    edges = [range_.start + range_.size * number // count for number in range(count + 1)]
    return [replace(range_, start=start, end=end) for start, end in pairwise(edges)]


def share(waiting: Mapping[Place, int], most: int) -> dict[Place, int]:
    """How many messages of each partition go into a micro-batch of `most`, in proportion to what waits there.

    Every partition with messages gives at least one, so that a small one is never kept waiting by large ones that grow
    as fast as they are read. Only with more such partitions than `most` there are more messages than that.
    """
    total = sum(waiting.values())
    if total <= most:
        return dict(waiting)
    shares = {place: most * count // total for place, count in waiting.items()}
    small = {place for place, count in waiting.items() if count and not shares[place]}
    shares |= dict.fromkeys(small, 1)
    left_over = most - sum(shares.values())
    # What rounding down left over goes to those that lost most by it; what the small ones got, the largest give.
    by_loss = sorted(waiting.keys() - small, key=lambda place: (-(most * waiting[place] % total), place))
    for place in by_loss[: max(0, left_over)]:
        shares[place] += 1
    for _ in range(-left_over):
        largest = max(shares, key=lambda place: (shares[place], place))
        if shares[largest] <= 1:
            break
        shares[largest] -= 1
    return shares
