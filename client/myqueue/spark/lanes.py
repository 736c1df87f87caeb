"""A few threads that send: jobs of one lane run one after the other, in order, those of others beside them."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

from myqueue.wire import Wire

LANES = 4
_WAITING = 2  # jobs of a lane, the one that runs included: what they are to send is in memory

Job = Callable[[Wire], None]


class Lanes:
    """Each lane has a connection of its own. Used by one thread."""

    def __init__(self, url: str, lanes: int = LANES) -> None:
        self._wires = [Wire(url) for _ in range(lanes)]
        self._threads = [ThreadPoolExecutor(1, thread_name_prefix=f"myqueue-lane-{lane}") for lane in range(lanes)]
        self._waiting: list[deque[Future[None]]] = [deque() for _ in range(lanes)]

    def put(self, number: int, job: Job) -> None:
        """Jobs of the same number keep their order. Waits while its lane has enough to do; raises a job's error."""
        lane = number % len(self._threads)
        waiting = self._waiting[lane]
        while len(waiting) >= _WAITING:
            waiting.popleft().result()
        waiting.append(self._threads[lane].submit(job, self._wires[lane]))

    def finish(self) -> None:
        """Waits until all is done; raises the first error."""
        for waiting in self._waiting:
            while waiting:
                waiting.popleft().result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for thread in self._threads:
            thread.shutdown(wait=False, cancel_futures=True)
        for thread, wire in zip(self._threads, self._wires, strict=True):
            thread.shutdown()
            wire.close()
