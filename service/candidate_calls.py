"""One question about many keys, each of which one of several servers can answer."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from myqueue.protocol.errors import MyQueueError

K = TypeVar("K", bound=Hashable)
A = TypeVar("A")

PAUSE_S = 0.05


async def ask_candidates(
    candidates: Mapping[K, Sequence[str]], ask: Callable[[str, list[K]], Awaitable[Mapping[K, A]]]
) -> dict[K, A]:
    """Call the first endpoint of every key, then the second one of the keys that have no answer yet, and so on.

    Keys with the same endpoint share a call, and the calls of a round run at the same time. Keys that no endpoint
    answered are missing from the result.
    """
    found: dict[K, A] = {}
    for turn in range(max(map(len, candidates.values()), default=0)):
        keys_by_endpoint: dict[str, list[K]] = {}
        for key, endpoints in candidates.items():
            if key not in found and turn < len(endpoints):
                keys_by_endpoint.setdefault(endpoints[turn], []).append(key)
        calls = (_attempt(ask(endpoint, keys)) for endpoint, keys in keys_by_endpoint.items())
        for answers in await asyncio.gather(*calls):
            found.update(answers)
    return found


async def _attempt(call: Awaitable[Mapping[K, A]]) -> Mapping[K, A]:
    try:
        return await call
    except MyQueueError:
        return {}  # the next endpoint may have the answer


async def ask_until_answered(
    keys: Iterable[K], ask: Callable[[list[K]], Awaitable[Mapping[K, A]]], timeout_s: float
) -> dict[K, A]:
    """Repeat the calls for missing keys, with a pause, until none is missing or `timeout_s` has passed."""
    now_s = asyncio.get_running_loop().time
    deadline_s = now_s() + timeout_s
    found: dict[K, A] = {}
    missing = list(keys)
    while missing:
        found |= await ask(missing)
        missing = [key for key in missing if key not in found]
        if missing:
            if now_s() + PAUSE_S > deadline_s:
                break
            await asyncio.sleep(PAUSE_S)
    return found
