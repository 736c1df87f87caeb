"""Server-Sent Events: the text of events, and the response that carries them.

A browser's EventSource, or any client that reads lines, takes it. Events have to come, or comments, at least every
`KEEP_ALIVE_S`: proxies close connections on which nothing happens.
"""

from myqueue.protocol.http_headers import EVENTS_TYPE
from service.http_messages import HttpResponse
from service.response_stream import ChunkSource

KEEP_ALIVE_S = 15.0
KEEP_ALIVE = b": keep-alive\n\n"  # a comment: clients ignore it
RETRY_MS = 1000  # how long a client waits before it connects again


def encode_event(data: bytes, *, event: bytes | None = None, event_id: bytes | None = None) -> bytes:
    """One event. Neither a name nor an id may contain a line break; lines of data become lines of their own."""
    lines = [] if event_id is None else [b"id: ", event_id, b"\n"]
    if event is not None:
        lines += [b"event: ", event, b"\n"]
    lines += [b"data: ", data if b"\n" not in data else data.replace(b"\n", b"\ndata: "), b"\n\n"]
    return b"".join(lines)


def encode_start(event_id: bytes | None = None, retry_ms: int = RETRY_MS) -> bytes:
    """What a stream begins with: it has no data, so that a client only notes the id and the time to wait."""
    return b"retry: %d\n%s\n" % (retry_ms, b"" if event_id is None else b"id: %s\n" % event_id)


def event_stream(chunks: ChunkSource) -> HttpResponse:
    """`chunks` are whole events or comments: the stream may be ended behind any of them."""
    headers = [
        ("content-type", EVENTS_TYPE),
        ("cache-control", "no-store"),
        ("x-accel-buffering", "no"),  # nginx passes every event on at once
    ]
    return HttpResponse(200, headers, b"", stream=chunks)
