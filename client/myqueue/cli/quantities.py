"""Times, durations, sizes and rates as people write them. Pure."""

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d|w))+", re.ASCII)
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)", re.ASCII)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.ASCII | re.IGNORECASE)
_RATE = re.compile(r"(\d+(?:\.\d+)?)(?:/s)?", re.ASCII)
_WHOLE = re.compile(r"\d{1,19}", re.ASCII)
_MAX_OFFSET = (1 << 63) - 1
_SHOWN_CHARS = 40
_FIRST_MS = 100_000_000_000  # as seconds since 1970 that is the year 5138, as milliseconds 1973

MIN_RATE, MAX_RATE = 0.001, 1e9  # a second
PLACES = "earliest, latest, an offset, -N (the last N), -10m (that long ago), a date and time, or @seconds since 1970"


class BadQuantity(ValueError):
    """The message names the valid forms."""


@dataclass(frozen=True, slots=True)
class Place:
    """A position in a partition: its ends, an offset, a number before its end, or a time (ms since 1970)."""

    kind: Literal["earliest", "latest", "offset", "last", "time"]
    value: int = 0


def place(text: str, now_ms: int) -> Place:
    word = text.strip()
    if word.lower() in ("earliest", "beginning", "start"):
        return Place("earliest")
    if word.lower() in ("latest", "end"):
        return Place("latest")
    if _WHOLE.fullmatch(word):
        return Place("offset", _bounded(int(word), text))
    if word.startswith("@") and _WHOLE.fullmatch(word[1:]):
        moment = int(word[1:])
        return Place("time", _bounded(moment if moment >= _FIRST_MS else moment * 1000, text))
    if word.startswith("-"):
        if _WHOLE.fullmatch(word[1:]):
            return Place("last", _bounded(int(word[1:]), text))
        if _DURATION.fullmatch(word[1:]):
            return Place("time", max(0, now_ms - duration_ms(word[1:])))
    try:
        moment_s = datetime.fromisoformat(word).timestamp()  # without a zone: local time
    except (ValueError, OverflowError, OSError):
        raise BadQuantity(f"{text!r} is none of: {PLACES}") from None
    return Place("time", max(0, round(moment_s * 1000)))


def _bounded(number: float, text: str) -> int:
    """Rounded; infinity counts as a large number."""
    if number > _MAX_OFFSET:
        shown = text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."
        raise BadQuantity(f"{shown!r} is too large")
    return round(number)


def duration_ms(text: str) -> int:
    """`500ms`, `10s`, `1h30m`, `7d`"""
    if not _DURATION.fullmatch(text):
        raise BadQuantity(f"{text!r} is no duration; write it like 10s, 1h30m or 7d")
    total = sum(float(number) * _UNITS_MS[unit] for number, unit in _DURATION_PART.findall(text))
    return _bounded(total, text)


def size_bytes(text: str) -> int:
    """`1000`, `64KiB`, `1.5GB`"""
    found = _SIZE.fullmatch(text.strip())
    if not found:
        raise BadQuantity(f"{text!r} is no size; write it like 1000000, 64KiB or 1.5GB")
    number, unit, binary = found.groups()
    if binary and not unit:
        raise BadQuantity(f"{text!r} is no size; write it like 1000000, 64KiB or 1.5GB")
    power = " kmgt".index(unit.lower() or " ")
    return _bounded(float(number) * (1024 if binary else 1000) ** power, text)


def rate_per_s(text: str) -> float:
    """`100` or `100/s`"""
    found = _RATE.fullmatch(text.strip())
    if not found or float(found[1]) <= 0:
        raise BadQuantity(f"{text!r} is no rate; write it like 100 or 100/s")
    rate = float(found[1])
    if not MIN_RATE <= rate <= MAX_RATE:
        raise BadQuantity(f"a rate must be from {MIN_RATE:g} to {MAX_RATE:,.0f} a second")
    return rate
