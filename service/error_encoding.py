"""The one place that encodes errors, and describes what is wrong with a request."""

import json

from pydantic import ValidationError

from myqueue.protocol import http_headers
from myqueue.protocol.errors import MethodNotAllowed, MyQueueError

JSON = "application/json"


def encode_error(error: MyQueueError, request_id: str | None) -> tuple[int, list[tuple[str, str]], bytes]:
    answer_headers = [("content-type", JSON), (http_headers.REQUEST_ID.lower(), request_id or "")]
    retry_after_s = error.retry_after_s
    if retry_after_s is None and error.http_status in (429, 503):
        retry_after_s = 1
    if retry_after_s is not None:
        answer_headers.append(("retry-after", str(max(1, round(retry_after_s)))))
    if isinstance(error, MethodNotAllowed) and "allow" in error.details:
        answer_headers.append(("allow", ", ".join(error.details["allow"])))
    return error.http_status, answer_headers, json.dumps(error.to_body(request_id)).encode()


def forget_frames(error: BaseException) -> None:
    """Once the error is encoded. Its traceback has the frames it has passed, with the request's body; a frame that has
    the error in a local variable makes that a cycle, which would stay in memory until the collector's rare turn."""
    link: BaseException | None = error
    while link is not None and link.__traceback__ is not None:
        link.__traceback__ = None
        link = link.__cause__ or link.__context__


def describe(error: ValidationError) -> str:
    """Every problem with the field it belongs to, short enough for a log line."""
    problems = []
    for problem in error.errors(include_url=False, include_input=False, include_context=False):
        where = ".".join(str(part) for part in problem["loc"])
        what = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            what = "unknown field"
        problems.append(f"{where}: {what}" if where else what)
    return "; ".join(problems[:5])[:500]
