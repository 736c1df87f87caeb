"""How far behind a query is, from its offsets."""

from myqueue.spark.offsets import StreamOffset
from myqueue.spark.progress import OffsetsBehindLatest, behind


def test_messages_behind() -> None:
    end = StreamOffset({"a": "1", "b": "2"}, {("a", 0): 5, ("a", 1): 7, ("b", 0): 9})
    latest = StreamOffset({"a": "1", "b": "3"}, {("a", 0): 15, ("a", 1): 7, ("b", 0): 4, ("a", 2): 1})
    assert behind(end, latest) == OffsetsBehindLatest(min=0, avg=3.75, max=10, total=15)
    assert behind(end, StreamOffset({}, {})) is None
