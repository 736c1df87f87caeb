"""Backpressure in front of a router: bounds the requests in flight and the bytes of their bodies."""

import asyncio
import time

from myqueue.protocol.errors import Overloaded, TooLarge
from service.body_budget import BodyBudget
from service.http_messages import HttpRequest
from service.router import RouteMatch, Router


class HttpApp:
    def __init__(
        self,
        router: Router,
        *,
        max_body_bytes: int,
        bodies: BodyBudget,
        leave_body_bytes: int = 0,
        max_on_loop: int = 4096,
        max_on_threads: int = 1,
        max_streams: int = 1024,
    ) -> None:
        """`max_on_loop` and `max_on_threads` bound requests in flight; those on threads include the ones that wait for
        a thread. `max_streams` bounds streamed responses, which do not count as requests in flight. `bodies` is the
        budget of the process, of which this listener leaves `leave_body_bytes` to others."""
        self.router = router
        self.max_body_bytes = max_body_bytes
        self.bodies = bodies
        self.leave_body_bytes = leave_body_bytes
        self.max_in_flight = {False: max_on_loop, True: max_on_threads}  # by whether it runs on a thread
        self.in_flight = {False: 0, True: 0}
        self.max_streams = max_streams
        self.streams = 0
        self.unanswered = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def begin(self, request: HttpRequest, match: RouteMatch | None) -> "Exchange":
        if self.unanswered == 0:
            self._idle.clear()
        self.unanswered += 1
        return Exchange(self, request, match)

    def ended(self) -> None:
        self.unanswered -= 1
        if self.unanswered == 0:
            self._idle.set()

    def check_size(self, size: int) -> None:
        if size > self.max_body_bytes:
            raise TooLarge(f"request body is larger than {self.max_body_bytes} bytes")

    def begin_stream(self) -> None:
        if self.streams >= self.max_streams:
            raise Overloaded(f"{self.streams} streams are open, as many as this server takes", retry_after_s=5)
        self.streams += 1

    def end_stream(self) -> None:
        self.streams -= 1

    async def drain(self, timeout_s: float) -> bool:
        """True when every request in flight was answered in time."""
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    def stop(self) -> None:
        """Handlers that wait answer now."""
        self.router.stop()

    def close(self) -> None:
        self.router.close()


class Exchange:
    """A request from its head to its answer, with what it holds meanwhile."""

    __slots__ = ("_app", "_counted_on", "_held_bytes", "_started_s", "match", "request")

    def __init__(self, app: HttpApp, request: HttpRequest, match: RouteMatch | None) -> None:
        self._app = app
        self.request = request
        self.match = match
        self._started_s = time.perf_counter()
        self._held_bytes = 0
        self._counted_on: bool | None = None

    def admit(self, match: RouteMatch, body_bytes: int) -> None:
        """Not a byte of the body is read before its memory is reserved."""
        app = self._app
        app.check_size(body_bytes)
        route = match.route
        if route.limited and app.in_flight[route.on_thread] >= app.max_in_flight[route.on_thread]:
            raise Overloaded(retry_after_s=1)
        if body_bytes:
            app.bodies.take(body_bytes, app.leave_body_bytes)
            self._held_bytes = body_bytes
        app.in_flight[route.on_thread] += 1
        self._counted_on = route.on_thread

    def set_body(self, body: bytes) -> None:
        """Returns the part of the reservation that the body did not need."""
        self.request.body = body
        if self._held_bytes > len(body):
            self._app.bodies.give_back(self._held_bytes - len(body))
            self._held_bytes = len(body)

    def release(self) -> None:
        """Before the answer is sent: the next request may come as soon as the client has it."""
        if self._held_bytes:
            self._app.bodies.give_back(self._held_bytes)
            self._held_bytes = 0
        if self._counted_on is not None:
            self._app.in_flight[self._counted_on] -= 1
            self._counted_on = None

    def end(self, status: int) -> None:
        """After the answer was sent, so that no client waits for it. Status 0: there was none."""
        self.release()
        if status:
            self._app.router.observe(self.match, self.request, status, time.perf_counter() - self._started_s)
        self._app.ended()
