"""How a command ends: its exit code, and a message without a traceback that says what to do.

0 it worked; 1 the server refused, or what was asked for is not so; 2 wrong usage; 3 the server cannot be reached or is
not ready; 4 no such topic, partition or consumer; 130 interrupted by Ctrl-C; 141 nobody reads the output any more;
143 ended by SIGTERM.
"""

import logging
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, TypeVar, overload

import typer

from myqueue.cli.output import Output, Styled
from myqueue.cli.settings import BadSettings
from myqueue.http_connection import NoResponse
from myqueue.protocol import errors

T = TypeVar("T")

OK, REFUSED, USAGE, UNREACHABLE, NOT_FOUND, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 3, 4, 130, 141

_NOT_FOUND = (
    errors.TopicNotFound,
    errors.PartitionNotFound,
    errors.ConsumerNotFound,
    errors.ProducerNotFound,
    errors.BrokerNotFound,
)
_HINTS: tuple[tuple[type[errors.MyQueueError], str], ...] = (
    (errors.TopicNotFound, "'myqueue topic list' shows the topics there are, 'myqueue topic create NAME' makes one"),
    (errors.PartitionNotFound, "'myqueue topic describe NAME' shows the topic's partitions; they count from 0"),
    (errors.ConsumerNotFound, "'myqueue consumer list' shows the consumers there are"),
    (
        errors.TopicExists,
        "with --if-not-exists a topic that is there with the same settings is fine;"
        " 'myqueue topic alter' changes its retention",
    ),
    (errors.RouteNotFound, "what answers there is no myqueue, or another version of it"),
    (
        errors.NotMyQueue,
        "another program has this port: --url, MYQUEUE_URL or --profile choose another; 'myqueue doctor' looks closer",
    ),
    (
        NoResponse,
        "is the cluster running there? --url, MYQUEUE_URL or --profile choose another; 'myqueue doctor' looks closer",
    ),
    (errors.Unavailable, "try again in a moment, or longer with --timeout; 'myqueue doctor' tells what is missing"),
    (errors.UpstreamFailed, "'myqueue doctor' tells what is missing"),
    (errors.UpstreamTimeout, "'myqueue doctor' tells what is missing"),
)


class CommandFailed(Exception):
    """An error that the command itself finds."""

    def __init__(
        self, message: str, exit_code: int = REFUSED, *, hint: str | None = None, details: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code
        self.hint = hint
        self.details = details or {}


@overload
def parsed(option: str, parse: Callable[[str], T], text: str) -> T: ...
@overload
def parsed(option: str, parse: Callable[[str], T], text: str | None) -> T | None: ...
def parsed(option: str, parse: Callable[[str], T], text: str | None) -> T | None:
    """The parsed text of an option; None if it was not given."""
    if text is None:
        return None
    try:
        return parse(text)
    except ValueError as error:
        raise CommandFailed(f"{option}: {error}", USAGE) from None


def exit_code(error: errors.MyQueueError) -> int:
    if isinstance(error, _NOT_FOUND):
        return NOT_FOUND
    if isinstance(error, errors.InvalidRequest):
        return USAGE
    if error.http_status in (502, 503, 504):
        return UNREACHABLE
    return REFUSED


def hint_for(error: errors.MyQueueError) -> str | None:
    return next((hint for kind, hint in _HINTS if isinstance(error, kind)), None)


def run(output: Output, call: Callable[[], None]) -> int:
    """The exit code of a command; errors are printed."""
    with _Warnings(output):
        return ended(output, call)


def ended(output: Output, call: Callable[[], None]) -> int:
    """The exit code after the output is flushed."""
    try:
        code = _code(call)
        sys.stdout.flush()
    except BrokenPipeError:
        _leave_stdout()
        return BROKEN_PIPE
    except OSError as error:
        if error.filename is None:
            _leave_stdout()  # stdout may be what failed
        return print_error(output, error)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - no traceback is for users
        return print_error(output, error)
    return code


def _code(call: Callable[[], None]) -> int:
    try:
        call()
    except typer.Exit as exit_:
        return exit_.exit_code
    return OK


def print_error(output: Output, error: Exception) -> int:
    """Prints the error as text or JSON; its exit code."""
    body: dict[str, Any] = {"status": "failure"}
    if isinstance(error, errors.MyQueueError):
        code, hint = exit_code(error), hint_for(error)
        body = error.to_body(error.request_id)
        message = f"{error.message} ({error.error_code}{_request(error)})"
        if error.outcome == "unknown":
            message += "; it may have been carried out"
    elif isinstance(error, CommandFailed):
        code, hint, message = error.exit_code, error.hint, error.message
        body |= {"message": message, **error.details}
    elif isinstance(error, BadSettings | typer.TyperException):
        code, hint = USAGE, _usage_hint(error)
        message = error.format_message() if isinstance(error, typer.TyperException) else str(error)
        body["message"] = message
    elif isinstance(error, OSError):
        named = error.filename is not None
        code, hint = USAGE if named else REFUSED, None
        body["message"] = message = f"{error.filename}: {error.strerror}" if named else error.strerror or str(error)
    elif isinstance(error, UnicodeEncodeError):
        code, hint, message = USAGE, None, "an argument is not valid UTF-8"
        body["message"] = message
    else:
        code, hint, message = REFUSED, "MYQUEUE_TRACEBACK=1 shows where", f"a defect: {type(error).__name__}: {error}"
        body["message"] = message
        if os.environ.get("MYQUEUE_TRACEBACK"):
            traceback.print_exception(error)
    notes = list(getattr(error, "__notes__", ()))
    if output.as_json:
        body |= {"exit_code": code} | ({"hint": hint} if hint else {}) | ({"notes": notes} if notes else {})
        output.failure(body)
        return code
    output.note(Styled(f"error: {message}", "red"))
    for note in notes:
        output.note(f"       {note}")
    if hint:
        output.note(Styled(f"hint: {hint}", "dim"))
    return code


def _request(error: errors.MyQueueError) -> str:
    """Names the request id, by which the logs can be searched."""
    return f", request {error.request_id}" if error.request_id and error.http_status >= 500 else ""


def _usage_hint(error: Exception) -> str | None:
    context = getattr(error, "ctx", None)
    return f"'{context.command_path} --help' shows how" if context is not None else None


def _leave_stdout() -> None:
    """Drops the buffered rest, which the interpreter would flush again at its end."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except OSError:
        return  # stdout is no file


class _Warnings(logging.Handler):
    """Prints the library's log while a command runs, without tracebacks."""

    def __init__(self, output: Output) -> None:
        super().__init__(logging.WARNING)
        self._output = output
        self._logger = logging.getLogger("myqueue")

    def emit(self, record: logging.LogRecord) -> None:
        self._output.note(Styled(f"warning: {record.getMessage()}", "yellow"))

    def __enter__(self) -> None:
        self._logger.addHandler(self)

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)
