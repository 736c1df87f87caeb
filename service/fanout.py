"""The same question to several addresses at once."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from myqueue.protocol.errors import MyQueueError

R = TypeVar("R")


class FanOut(Generic[R]):
    def __init__(self, threads: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)

    def ask(self, addresses: Iterable[str], question: Callable[[str], R]) -> dict[str, R]:
        """The answers of those that answered; whoever failed is missing."""
        asked = {address: self._pool.submit(question, address) for address in addresses}
        answers = {}
        for address, future in asked.items():
            try:
                answers[address] = future.result()
            except MyQueueError:
                continue
        return answers

    def start(self) -> None:
        """Threads come with the first question."""

    def stop(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
