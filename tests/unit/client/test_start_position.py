"""Where a consumer begins: the forms that callers use, and the mistakes they make."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from myqueue import Admin, ApiHandler, Consumer, InvalidRequest
from myqueue.start_position import seek_position, start_position, timestamp_ms
from tests.unit.client.memory_cluster import MemoryCluster
from tests.unit.client.scripted_server import Reply, ScriptedServer

NOON = datetime(2026, 3, 1, 12, 0, 0, 250_000, tzinfo=UTC)
NOON_MS = 1_772_366_400_250


@pytest.mark.parametrize(
    ("start", "sent"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        ({"offset": 17}, {"offset": 17}),
        ({"timestamp": 5}, {"timestamp": 5}),
        ({"timestamp": NOON_MS}, {"timestamp": NOON_MS}),
        ({"timestamp": NOON}, {"timestamp": NOON_MS}),
        (NOON, {"timestamp": NOON_MS}),
        (NOON.astimezone(timezone(timedelta(hours=9))), {"timestamp": NOON_MS}),
        (NOON.astimezone().replace(tzinfo=None), {"timestamp": NOON_MS}),  # without a zone: local time
    ],
)
def test_what_a_start_may_be(start: Any, sent: object) -> None:
    assert start_position(start, 0) == sent


@pytest.mark.parametrize(
    ("start", "said"),
    [
        (17, r'^start: 17 may be an offset or a time; write \{"offset": 17\} with a partition, '),
        (1.5, "^start: 1.5 may be an offset or a time"),
        (True, "^start: True may be"),
        ("newest", '^start must be "latest", "earliest", .* or a datetime, not \'newest\'$'),
        (None, "^start must be .*, not None$"),
        ({}, "^start must be"),
        ({"offset": 1, "timestamp": 2}, "^start must be"),
        ({"time": 1}, "^start must be"),
        ({"offset": -1}, "^start: an offset must be an int from 0 on, not -1$"),
        ({"offset": "1"}, "^start: an offset must be an int from 0 on, not '1'$"),
        ({"timestamp": "1"}, "^start: timestamp must be an int, in ms since 1970, or a datetime, not '1'$"),
        ({"timestamp": 1.7e9}, r"^start: timestamp must be .* take time.time_ns\(\) // 1_000_000$"),
        ({"timestamp": -1}, "^start: timestamp: -1 lies before 1970$"),
        ({"timestamp": NOON_MS * 1000}, "^start: timestamp: .* must be in milliseconds, not µs or ns$"),
        (
            {"timestamp": 1_772_366_400},
            r"^start: timestamp: 1772366400 is in seconds \(2026-03-01 12:00 UTC\); "
            "it must be in milliseconds: 1772366400000$",
        ),
    ],
)
def test_what_it_may_not_be_is_said_of_start(start: Any, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        start_position(start, 0)


def test_an_offset_needs_a_partition() -> None:
    with pytest.raises(InvalidRequest, match=r"^start: an offset belongs to a partition: say which$"):
        start_position({"offset": 1}, None)
    with pytest.raises(InvalidRequest, match=r"^to: an offset belongs to a partition: say which$"):
        seek_position(1, None)
    assert seek_position(1, 0) == {"offset": 1}


@given(st.integers(978_307_200, 4_102_444_800))
def test_seconds_of_our_time_are_never_taken_for_ms(seconds: int) -> None:
    with pytest.raises(InvalidRequest, match="is in seconds"):
        timestamp_ms(seconds, "start")
    assert timestamp_ms(datetime.fromtimestamp(seconds, UTC), "start") == seconds * 1000


def test_every_call_that_takes_a_place_takes_a_datetime(server: ScriptedServer) -> None:
    server.answer = MemoryCluster()
    with Consumer(server.url, topic="orders", name="billing", start=NOON):
        assert server.seen[0].body["from"] == {"timestamp": NOON_MS}
    with ApiHandler(server.url) as api:
        api.register_consumer("orders", "late", start=NOON)
        assert server.seen[-1].body["from"] == {"timestamp": NOON_MS}
    with Admin(server.url) as admin:
        server.answer = lambda _: Reply(200, {"status": "success", "cursors": [], "offset": 4})
        admin.seek(7, to=NOON)
        assert server.seen[-1].body == {"to": {"timestamp": NOON_MS}}
        assert admin.offset_at("orders", 0, NOON) == 4
        assert server.seen[-1].query == {"timestamp": str(NOON_MS)}


def test_nothing_is_sent_for_a_place_that_cannot_be_meant(server: ScriptedServer) -> None:
    seconds: Any = {"timestamp": 1_772_366_400}
    with pytest.raises(InvalidRequest, match=r"^start: timestamp: 1772366400 is in seconds"):
        Consumer(server.url, topic="orders", start=seconds)
    with Admin(server.url) as admin:
        with pytest.raises(InvalidRequest, match=r"^to: timestamp: 1772366400 is in seconds"):
            admin.seek(7, to=seconds)
        with pytest.raises(InvalidRequest, match=r"^timestamp: 1772366400 is in seconds"):
            admin.offset_at("orders", 0, 1_772_366_400)
    assert server.seen == []
