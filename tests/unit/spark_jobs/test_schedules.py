"""Schedules: what is taken, when a job is due, what was missed."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark.schedules import Schedule, parse, weekdays

NOON = datetime(2025, 3, 5, 12, 0, tzinfo=UTC)  # a Wednesday
moments = st.integers(0, 10**9).map(lambda second: NOON + timedelta(seconds=second))
TEXTS = ["interval:1s", "interval:60s", "interval:2d", "cron:*/5 * * * *", "cron:0 3 * * 0"]
schedules = st.sampled_from([parse(text) for text in TEXTS])


@pytest.mark.parametrize(
    ("text", "due"),
    [
        ("interval:7s", datetime(2025, 3, 5, 12, 0, 3, tzinfo=UTC)),  # counted from 1970
        (" interval:2h ", NOON + timedelta(hours=2)),
        ("cron:*/5 * * * *", NOON + timedelta(minutes=5)),
        ("cron:30 2 * * *", datetime(2025, 3, 6, 2, 30, tzinfo=UTC)),
        ("cron:0 0 * * 0", datetime(2025, 3, 9, tzinfo=UTC)),
        ("cron:0 0 * * 5-7", datetime(2025, 3, 7, tzinfo=UTC)),
        ("off", None),
    ],
)
def test_next(text: str, due: datetime | None) -> None:
    assert parse(text).next_tick(NOON) == due


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("60s", "is no schedule; give interval"),
        ("", "is no schedule"),
        ("off:1", "is no schedule"),
        ("interval:60", "is no interval"),
        ("interval:0s", "is no interval"),
        ("interval:-5s", "is no interval"),
        ("interval:400d", "longer than"),
        ("cron:* * * *", "has 4 fields"),
        ("cron:61 * * * *", "is not right"),
        ("cron:* * * * 8", "no weekday"),
        ("cron:* * * * fri-mon", "goes backwards"),
        ("cron:* * * * 1/2", "no weekday"),
        ("cron:x * * * *", "is not right"),
    ],
)
def test_wrong_ones_say_what_is_wrong(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse(text)


@pytest.mark.parametrize(
    ("field", "days"),
    [
        ("*", "*"),
        ("0", "sun"),
        ("7", "sun"),
        ("1-5", "mon,tue,wed,thu,fri"),
        ("6-7", "sun,sat"),
        ("SAT-sun", "sun,sat"),
        ("*/2", "sun,tue,thu,sat"),
        ("mon,3", "mon,wed"),
        ("1-5/2", "mon,wed,fri"),
    ],
)
def test_weekdays_count_from_sunday(field: str, days: str) -> None:
    assert weekdays(field) == days


def test_off_is_never_due() -> None:
    schedule = parse("off")
    assert schedule.is_off
    assert not schedule.is_missed(None, NOON)
    assert (schedule.next_tick(NOON), schedule.last_tick(NOON)) == (None, None)


def test_the_last_tick_may_be_long_ago() -> None:
    assert parse("cron:0 3 29 2 *").last_tick(NOON) == datetime(2024, 2, 29, 3, tzinfo=UTC)
    assert parse("cron:59 23 31 12 *").last_tick(NOON) == datetime(2024, 12, 31, 23, 59, tzinfo=UTC)


@given(schedules, moments, st.timedeltas(timedelta(0), timedelta(days=30)))
def test_ticks_are_the_same_whenever_one_looks(schedule: Schedule, last: datetime, passed: timedelta) -> None:
    now = last + passed
    tick, coming = schedule.last_tick(now), schedule.next_tick(now)
    assert tick is not None
    assert coming is not None
    assert tick <= now < coming
    assert schedule.next_tick(tick) == coming  # nothing lies between them
    assert schedule.last_tick(coming - timedelta(microseconds=1)) == tick
    assert schedule.last_tick(tick) == tick
    assert schedule.is_missed(None, now)
    assert schedule.is_missed(last, now) == (last < tick)
    assert not schedule.is_missed(tick, now)
    assert schedule.trigger().get_next_fire_time(None, now + timedelta(microseconds=1)) == coming
