"""Mistakes in arguments: refused before anything is sent, by the parameter's name.

The errors are those of the library and of Python at the same time: `except MyQueueError` and `except TypeError` both
catch them.
"""

import math
import operator
from typing import Any

from myqueue.protocol.errors import InvalidRequest
from myqueue.protocol.limits import MAX_CLIENT_NAME_CHARS


class WrongType(InvalidRequest, TypeError):
    """An argument of a type that cannot be used; the message names the parameter."""


class WrongValue(InvalidRequest, ValueError):
    """An argument that is out of range, or has another form; the message names the parameter."""


def check_number(
    parameter: str, value: float, lowest: float, highest: float = math.inf, *, whole: bool = False
) -> None:
    """Raises an error that names the parameter."""
    kind = int if whole else (int, float)
    if not isinstance(value, kind) or isinstance(value, bool):
        wanted = "an int" if whole else "a number"
        raise WrongType(f"{parameter} must be {wanted}, not {type(value).__name__}")
    if not lowest <= value <= highest or math.isnan(value):
        limit = f"{lowest:g} or more" if highest == math.inf else f"from {lowest:g} to {highest:.0f}"
        raise WrongValue(f"{parameter} must be {limit}, not {value}")


def check_name(name: object) -> None:
    if name is not None and not isinstance(name, str):
        raise WrongType(f"name must be a str or None, not {type(name).__name__}")
    if name is not None and not 0 < len(name) <= MAX_CLIENT_NAME_CHARS:
        raise WrongValue(f"name must have 1 to {MAX_CLIENT_NAME_CHARS} characters; leave it out to send without one")


def check_topic(topic: object) -> None:
    if not isinstance(topic, str):
        raise WrongType(f"topic must be a str, not {type(topic).__name__}")
    if not topic:
        raise WrongValue("topic must not be empty")


def check_timeout(timeout: object) -> None:
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float)):
        raise WrongType(f"timeout must be a number of seconds or None, not {type(timeout).__name__}")


def checked_int(parameter: str, value: Any) -> int:
    """Of an int, or of a number of another library that stands for one; whether there is such a partition or offset is
    another question."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise WrongType(f"{parameter} must be an int, not {type(value).__name__} ({value!r})")
    return operator.index(value)
