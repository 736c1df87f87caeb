"""The session token: reads that carry the newest one see everything this client has written."""

import threading

from myqueue.protocol.errors import InvalidRequest
from myqueue.protocol.token import Token


def _place(token: str) -> Token | None:
    """None if the token is of a form not known here: a newer server's."""
    try:
        return Token.parse(token)
    except InvalidRequest:
        return None


def newest(known: str | None, token: str) -> str:
    """Answers of calls made at the same time arrive in any order: the place counts. Unknown forms: the last one."""
    if known is None:
        return token
    known_place, place = _place(known), _place(token)
    if known_place is not None and place is not None and place < known_place:
        return known
    return token


class SessionToken:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._value: str | None = None

    @property
    def value(self) -> str | None:
        return self._value

    def learn(self, token: str | None) -> None:
        if token:
            with self._lock:
                self._value = newest(self._value, token)
