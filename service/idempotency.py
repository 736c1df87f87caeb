"""The Idempotency-Key header as clients may send it."""

from flask import request

from myqueue.protocol import http_headers
from myqueue.protocol.errors import InvalidRequest
from myqueue.protocol.limits import MAX_IDEMPOTENCY_KEY_CHARS


def idempotency_key() -> str | None:
    """Of the request that Flask answers."""
    return checked_key(request.headers.get(http_headers.IDEMPOTENCY_KEY))


def checked_key(key: str | None) -> str | None:
    if key is None:
        return None
    if not 1 <= len(key) <= MAX_IDEMPOTENCY_KEY_CHARS or not key.isascii() or not key.isprintable():
        raise InvalidRequest(
            f"{http_headers.IDEMPOTENCY_KEY}: must be 1 to {MAX_IDEMPOTENCY_KEY_CHARS} printable ASCII characters"
        )
    return key
