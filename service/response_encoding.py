"""The bytes of an HTTP/1.1 response: a length, unless it is streamed, and no copy of a large body."""

from http import HTTPStatus

from service.http_messages import HttpResponse

JOINED_BYTES = 32 << 10  # a body up to here is copied behind its head; larger ones are not

_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus}
_WITHOUT_BODY = frozenset({204, 304})


def encode_response(
    response: HttpResponse, date_line: str, *, is_head: bool, is_last: bool, is_chunked: bool = False
) -> list[bytes | memoryview]:
    """Buffers to be written one behind the other. `is_head`: an answer to HEAD; `is_last`: the connection ends with it;
    `is_chunked`: the coding of a stream, which follows. KeyError, ValueError for a status or headers that no response
    may have."""
    body = response.body
    length = len(body) if isinstance(body, bytes) else sum([len(part) for part in body])
    lines = [_STATUS_LINES[response.status]]
    lines += [f"{name}: {value}\r\n" for name, value in response.headers]
    if response.stream is not None:
        if is_chunked:
            lines.append("transfer-encoding: chunked\r\n")
    elif response.status not in _WITHOUT_BODY:
        lines.append(f"content-length: {length}\r\n")
    if is_last:
        lines.append("connection: close\r\n")
    lines.append(date_line)
    text = "".join(lines)
    if text.count("\n") != len(lines):
        raise ValueError("a line break in a header")
    head = text.encode("latin-1") + b"\r\n"
    if is_head or not length:
        return [head]
    if length <= JOINED_BYTES:
        return [head + response.joined_body()]
    return [head, body] if isinstance(body, bytes) else [head, *body]
