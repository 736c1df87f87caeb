"""The same question to several addresses at once."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from myqueue.protocol.errors import MyQueueError

K = TypeVar("K")
R = TypeVar("R")


class FanOut(Generic[K, R]):
    def __init__(self, threads: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)

    def ask(
        self, candidates: Mapping[K, Sequence[str]], question: Callable[[str, list[K]], Mapping[K, R]]
    ) -> dict[K, R]:
        """An answer for every key, from the first of its addresses that has one; keys nobody answers are missing.

        Keys with the same address share one question. All first addresses are asked at the same time, then the
        second ones for what is still open, and so on.
        """
        answers: dict[K, R] = {}
        for turn in range(max((len(addresses) for addresses in candidates.values()), default=0)):
            open_keys: dict[str, list[K]] = {}
            for key, addresses in candidates.items():
                if key not in answers and turn < len(addresses):
                    open_keys.setdefault(addresses[turn], []).append(key)
            asked = [self._pool.submit(question, address, keys) for address, keys in open_keys.items()]
            for future in asked:
                try:
                    answers.update(future.result())
                except MyQueueError:
                    continue  # the next address may know
        return answers

    def start(self) -> None:
        """Threads come with the first question."""

    def stop(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
