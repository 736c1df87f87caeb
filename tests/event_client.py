"""A client of event streams that hides nothing: events with their ids, comments, and how a stream ended."""

import http.client
import json
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from urllib.parse import quote, urlsplit


@dataclass(frozen=True)
class Event:
    kind: str
    event_id: str
    data: Any  # as JSON


class StreamEnded(Exception):
    """The server has ended the stream, as a whole number of events."""


class EventClient:
    def __init__(self, url: str, path: str, *, resume: str | None = None, **query: object) -> None:
        where = urlsplit(url)
        asked = "&".join(f"{name.rstrip('_')}={quote(str(value), safe='')}" for name, value in query.items())
        self._connection = http.client.HTTPConnection(str(where.hostname), where.port or 80, timeout=10)
        headers = {} if resume is None else {"Last-Event-ID": resume}
        self._connection.request("GET", f"{path}?{asked}" if asked else path, headers=headers)
        self.response = self._connection.getresponse()
        self.status = self.response.status
        self.headers = {name.lower(): value for name, value in self.response.getheaders()}
        self.last_event_id = resume or ""
        self.retry_ms: int | None = None
        self.comments = 0

    def failure(self) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(self.response.read())
        return body

    def start(self) -> "EventClient":
        """Reads up to the position at which it starts."""
        assert self.status == 200, self.response.read()
        assert self._block(time.monotonic() + 10) is None
        return self

    def next(self, within_s: float = 10) -> Event:
        deadline_s = time.monotonic() + within_s
        while True:
            event = self._block(deadline_s)
            if event is not None:
                return event

    def take(self, count: int, within_s: float = 10) -> list[Event]:
        return [self.next(within_s) for _ in range(count)]

    def _block(self, deadline_s: float) -> Event | None:
        """Up to the next empty line; None if it was no event. What is cut off before it counts as not received."""
        kind, event_id = "message", self.last_event_id
        data: list[str] = []
        while True:
            self._connection.sock.settimeout(max(0.001, deadline_s - time.monotonic()))
            line = self.response.readline()
            if not line:
                raise StreamEnded
            name, _, value = line.rstrip(b"\n").decode().partition(":")
            value = value.removeprefix(" ")
            if line == b"\n":
                self.last_event_id = event_id
                return Event(kind, self.last_event_id, json.loads("\n".join(data))) if data else None
            if name == "id":
                event_id = value
            elif name == "event":
                kind = value
            elif name == "data":
                data.append(value)
            elif name == "retry":
                self.retry_ms = int(value)
            else:
                assert name == "", line
                self.comments += 1

    def close(self) -> None:
        self.response.close()
        self._connection.close()

    def __enter__(self) -> "EventClient":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
