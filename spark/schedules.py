"""When a job is due: `interval:60s`, `cron:*/5 * * * *` (in UTC) or `off`. Pure."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger

EPOCH = datetime.fromtimestamp(0, UTC)
_INTERVAL = re.compile(r"([1-9][0-9]{0,8})(s|m|h|d)")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_LONGEST = timedelta(days=366)
# How far back to look for a tick of cron: the frequent ones are found soon, 29 February within nine years.
_SEARCHED = (timedelta(hours=1), timedelta(days=1), timedelta(days=32), timedelta(days=366), timedelta(days=9 * 366))
_WEEK = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FORMS = "interval:<number>s|m|h|d such as interval:60s, cron:<minute hour day month weekday>, or off"


@dataclass(frozen=True, slots=True)
class Schedule:
    """A sequence of ticks, the same in every process: intervals count from 1970 on."""

    text: str
    interval: timedelta | None = None
    cron: CronTrigger | None = None

    @property
    def is_off(self) -> bool:
        return self.interval is None and self.cron is None

    def next_tick(self, after: datetime) -> datetime | None:
        """None if there is none, ever."""
        if self.interval is not None:
            return EPOCH + ((after - EPOCH) // self.interval + 1) * self.interval
        if self.cron is not None:
            due: datetime | None = self.cron.get_next_fire_time(after, after)
            return due
        return None

    def last_tick(self, now: datetime) -> datetime | None:
        """The last one that was due, now included."""
        if self.interval is not None:
            return EPOCH + ((now - EPOCH) // self.interval) * self.interval
        for back in _SEARCHED:
            found, tick = None, self.next_tick(now - back)
            while tick is not None and tick <= now:
                found, tick = tick, self.next_tick(tick)
            if found is not None:
                return found
        return None

    def is_missed(self, last: datetime | None, now: datetime) -> bool:
        """Whether a tick has passed since the last run. A job that never ran is due, unless it is off."""
        tick = self.last_tick(now)
        return tick is not None and (last is None or last < tick)

    def trigger(self) -> CronTrigger | IntervalTrigger:
        """Fires at every tick; a schedule that is off has none."""
        if self.cron is not None:
            return self.cron
        assert self.interval is not None
        return IntervalTrigger(seconds=int(self.interval.total_seconds()), start_date=EPOCH, timezone=UTC)


def parse(text: str) -> Schedule:
    """Raises ValueError, whose message names the valid forms."""
    kind, _, rest = text.strip().partition(":")
    if kind == "off" and not rest:
        return Schedule("off")
    if kind == "interval":
        return Schedule(text.strip(), interval=_interval(rest.strip()))
    if kind == "cron":
        return Schedule(text.strip(), cron=_cron(rest.strip()))
    raise ValueError(f"{text!r} is no schedule; give {_FORMS}")


def _interval(text: str) -> timedelta:
    match = _INTERVAL.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no interval; give a number and s, m, h or d, such as 60s")
    interval = timedelta(**{_UNITS[match.group(2)]: int(match.group(1))})
    if interval > _LONGEST:
        raise ValueError(f"{text!r} is longer than {_LONGEST.days} days")
    return interval


def _cron(text: str) -> CronTrigger:
    fields = text.split()
    if len(fields) != 5:
        raise ValueError(f"{text!r} has {len(fields)} fields; cron takes 5: minute hour day month weekday")
    try:
        return CronTrigger.from_crontab(" ".join([*fields[:4], weekdays(fields[4])]), timezone=UTC)
    except ValueError as error:
        raise ValueError(f"{text!r} is not right: {error}") from None


def weekdays(field: str) -> str:
    """Days by name: cron counts from Sunday, the trigger from Monday, and only cron's ranges may start on a Sunday."""
    if field == "*":
        return field
    days: set[int] = set()
    for item in field.lower().split(","):
        span, _, step = item.partition("/")
        first, dash, last = span.partition("-")
        if step and (not step.isdecimal() or int(step) < 1 or not (dash or span == "*")):
            raise ValueError(f"{item!r} is no weekday")
        low, high = (0, 6) if span == "*" else (_day(first), _day(last) if dash else _day(first))
        if high < low and high == 0:
            high = 7  # sat-sun
        if high < low:
            raise ValueError(f"{item!r} goes backwards")
        days.update(day % 7 for day in range(low, high + 1, int(step or 1)))
    return ",".join(_WEEK[day] for day in sorted(days))


def _day(text: str) -> int:
    if text in _WEEK:
        return _WEEK.index(text)
    if text.isdecimal() and int(text) <= 7:
        return int(text)
    raise ValueError(f"{text!r} is no weekday")
