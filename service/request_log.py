"""Lines about requests, as many as somebody can read: a busy process tells of some and counts the others."""

import time

from service.logs import Log

LINES_A_SECOND = 50


class RequestLog:
    def __init__(self, log: Log, lines_a_second: int = LINES_A_SECOND) -> None:
        self._log = log
        self._lines_a_second = lines_a_second
        self._second = 0
        self._lines = 0
        self._left_out = 0

    def tell(self, route: str, method: str, path: str, status: int, seconds: float) -> None:
        second = int(time.monotonic())
        if second != self._second:
            self._second = second
            self._lines = 0
        if self._lines >= self._lines_a_second:
            self._left_out += 1
            return
        self._lines += 1
        more = {"left_out": self._left_out} if self._left_out else {}
        self._left_out = 0
        self._log.info(
            "request", method=method, path=path, route=route, status=status, ms=round(seconds * 1000, 2), **more
        )
