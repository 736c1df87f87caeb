"""How far behind a query is, from its offsets."""

from pyspark.sql.streaming.listener import StreamingQueryProgress

from myqueue.spark.offsets import StreamOffset
from myqueue.spark.progress import OffsetsBehindLatest, behind, offsets_behind_latest


def test_messages_behind() -> None:
    end = StreamOffset({"a": "1", "b": "2"}, {("a", 0): 5, ("a", 1): 7, ("b", 0): 9})
    latest = StreamOffset({"a": "1", "b": "3"}, {("a", 0): 15, ("a", 1): 7, ("b", 0): 4, ("a", 2): 1})
    assert behind(end, latest) == OffsetsBehindLatest(min=0, avg=3.75, max=10, total=15)
    assert behind(end, StreamOffset({}, {})) is None


def test_other_sources_of_a_query_do_not_count() -> None:
    def source(end: object, latest: object) -> dict[str, object]:
        numbers = {"numInputRows": 1, "inputRowsPerSecond": 1.0, "processedRowsPerSecond": 1.0}
        return {"description": "any", "startOffset": None, "endOffset": end, "latestOffset": latest, **numbers}

    def progress(*sources: dict[str, object]) -> StreamingQueryProgress:
        fixed = {"id": "00000000-0000-0000-0000-000000000001", "runId": "00000000-0000-0000-0000-000000000002"}
        sink = {"description": "any", "numOutputRows": 1}
        more: dict[str, object] = {
            "name": None,
            "timestamp": "",
            "batchId": 1,
            "batchDuration": 1,
            "durationMs": {},
            "eventTime": {},
        }
        rest = {"stateOperators": [], "sources": list(sources), "sink": sink, "numInputRows": 1}
        return StreamingQueryProgress.fromJson(
            {**fixed, **more, **rest, "inputRowsPerSecond": 1.0, "processedRowsPerSecond": 1.0}
        )

    topic = source({"a": {"0": 5, "id": "1"}}, {"a": {"0": 8, "id": "1"}})
    others = [source({"a": {"0": 5}}, {"a": {"0": 90}}), source(17, 90), source(None, None), source("x", "x")]
    assert offsets_behind_latest(progress(topic, *others)) == OffsetsBehindLatest(3, 3.0, 3, 3)
    assert offsets_behind_latest(progress(*others)) is None
