"""Where to begin reading, as callers say it and as the API takes it. Pure."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from myqueue.argument_checks import WrongType, WrongValue

# "latest", "earliest", {"offset": 17} (with a partition), {"timestamp": <ms since 1970>}, or a datetime
Start = Literal["latest", "earliest"] | Mapping[str, int | datetime] | datetime

_FORMS = '"latest", "earliest", {"offset": n}, {"timestamp": <ms since 1970>} or a datetime'
# Taken as ms, these are days of January and February 1970; taken as seconds, they are from 2001 to 2100.
_FIRST_SECONDS, _LAST_SECONDS = 978_307_200, 4_102_444_800
_LAST_MS = 253_402_300_799_999  # the end of the year 9999: what is larger was µs or ns
_MAX_OFFSET = (1 << 63) - 1


def start_position(start: Start, partition: int | None, parameter: str = "start") -> str | dict[str, int]:
    """As the API takes it; raises an error that names the parameter."""
    if isinstance(start, datetime):
        return {"timestamp": timestamp_ms(start, parameter)}
    if isinstance(start, str):
        if start not in ("latest", "earliest"):
            raise WrongValue(f"{parameter} must be {_FORMS}, not {start!r}")
        return start
    if isinstance(start, int | float):
        raise WrongValue(
            f'{parameter}: {start!r} may be an offset or a time; write {{"offset": {start!r}}} with a partition, '
            f'{{"timestamp": {start!r}}} if it is in ms since 1970, or give a datetime'
        )
    if not isinstance(start, Mapping) or len(start) != 1 or not start.keys() <= {"offset", "timestamp"}:
        raise WrongValue(f"{parameter} must be {_FORMS}, not {start!r}")
    if "timestamp" in start:
        return {"timestamp": timestamp_ms(start["timestamp"], f"{parameter}: timestamp")}
    if partition is None:
        raise WrongValue(f"{parameter}: an offset belongs to a partition: say which")
    return {"offset": _offset(start["offset"], parameter)}


def seek_position(to: int | Start, partition: int | None) -> str | dict[str, int]:
    """As `start_position`; an int is an offset."""
    return start_position({"offset": to} if isinstance(to, int) else to, partition, "to")


def timestamp_ms(moment: int | datetime, parameter: str) -> int:
    """ms since 1970. A datetime without a zone is local time, as it is for `datetime.timestamp` and the command line.

    Raises WrongValue for what was probably meant in another unit.
    """
    if isinstance(moment, datetime):
        try:
            return max(0, round(moment.timestamp() * 1000))
        except (OverflowError, OSError):
            raise WrongValue(f"{parameter}: {moment} is out of range") from None
    if isinstance(moment, bool) or not isinstance(moment, int):
        hint = "; time.time() is in seconds: take time.time_ns() // 1_000_000" if isinstance(moment, float) else ""
        raise WrongType(f"{parameter} must be an int, in ms since 1970, or a datetime, not {moment!r}{hint}")
    if moment < 0:
        raise WrongValue(f"{parameter}: {moment} lies before 1970")
    if _FIRST_SECONDS <= moment <= _LAST_SECONDS:
        meant = datetime.fromtimestamp(moment, UTC)
        raise WrongValue(
            f"{parameter}: {moment} is in seconds ({meant:%Y-%m-%d %H:%M} UTC); it must be in milliseconds: {moment}000"
        )
    if moment > _LAST_MS:
        raise WrongValue(f"{parameter}: {moment} lies after the year 9999; it must be in milliseconds, not µs or ns")
    return moment


def _offset(offset: Any, parameter: str) -> int:
    if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset <= _MAX_OFFSET:
        raise WrongValue(f"{parameter}: an offset must be an int from 0 on, not {offset!r}")
    return offset
