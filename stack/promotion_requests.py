"""Requests of persons to make a standby the primary: from `make promote` to the runner, and its answer, as files."""

import json
from contextlib import suppress

from stack.failover import PromotionRequest
from stack.home import Home, read_json, write_atomic

OPEN_S = 60.0


class PromotionRequests:
    """At most one is open. `now_s` is monotonic."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._request: PromotionRequest | None = None
        self._until_s = 0.0

    def forget(self) -> None:
        """What a power cut left behind was asked of an earlier runner, about what was then."""
        self._home.promotion_request.unlink(missing_ok=True)

    def take(self, now_s: float) -> PromotionRequest | None:
        """A new one, if there is one. One that was not carried out in time is over."""
        if self._request is not None and now_s >= self._until_s:
            self.answer(f"nothing came of it within {OPEN_S:.0f} s; `make status` says what it waits for")
        try:
            asked = read_json(self._home.promotion_request)
            if asked is None:
                return None
            self.forget()
            self._request = PromotionRequest(**asked)
        except (ValueError, TypeError):  # not written by `promote`
            self.forget()
            return None
        self._until_s = now_s + OPEN_S
        return self._request

    def open_at(self, now_s: float) -> PromotionRequest | None:
        return self._request if now_s < self._until_s else None

    def answer(self, refusal: str | None) -> None:
        """Ends a person's request, if there is one."""
        if self._request is not None:
            self._request = None
            with suppress(OSError):  # without an answer the command says so itself
                write_atomic(self._home.promotion_answer, json.dumps({"refusal": refusal}))
