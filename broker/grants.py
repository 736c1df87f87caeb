"""Grants that were shown lately: verifying one costs more than finding it again."""

import time
from collections.abc import Callable
from uuid import UUID

from myqueue.protocol.errors import GrantInvalid
from myqueue.protocol.grant import Grant, verify

_REMEMBERED = 4096
_MAX_CHARS = 200


class Grants:
    def __init__(self, secret: str, clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        self._secret = secret
        self._clock_ms = clock_ms
        self._verified: dict[str, Grant] = {}

    def check(self, text: str | None, right: int, topic_id: UUID, partition_id: int) -> None:
        if not text or len(text) > _MAX_CHARS:
            raise GrantInvalid()
        now_ms = self._clock_ms()
        grant = self._verified.get(text)
        if grant is None:
            grant = verify(self._secret, text, now_ms)
            if len(self._verified) >= _REMEMBERED:
                self._verified.clear()
            self._verified[text] = grant
        elif grant.expires_ms <= now_ms:
            del self._verified[text]
            raise GrantInvalid()
        grant.check(right, topic_id, partition_id)
