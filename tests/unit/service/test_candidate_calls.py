"""Questions to candidates: a round for all keys at a time, the next candidate after a failure, retries to deadline."""

import asyncio

from myqueue.protocol.errors import NoLeader
from service.candidate_calls import ask_candidates, ask_until_answered


def test_keys_of_one_endpoint_share_a_call_and_failures_move_on() -> None:
    calls: list[tuple[str, list[int]]] = []

    async def ask(endpoint: str, keys: list[int]) -> dict[int, str]:
        calls.append((endpoint, keys))
        if endpoint == "away":
            raise NoLeader()
        return {key: endpoint for key in keys if key != 2}

    candidates = {0: ["a", "b"], 1: ["away", "b"], 2: ["a", "b"], 3: ["a"], 4: []}
    assert asyncio.run(ask_candidates(candidates, ask)) == {0: "a", 1: "b", 3: "a"}
    assert calls == [("a", [0, 2, 3]), ("away", [1]), ("b", [1, 2])]
    assert asyncio.run(ask_candidates({}, ask)) == {}


def test_only_missing_keys_are_asked_again_and_not_for_ever() -> None:
    asked: list[list[int]] = []

    async def ask(keys: list[int]) -> dict[int, str]:
        asked.append(keys)
        return {key: "found" for key in keys if key < len(asked)}

    assert asyncio.run(ask_until_answered([0, 1, 2], ask, timeout_s=5)) == dict.fromkeys(range(3), "found")
    assert asked == [[0, 1, 2], [1, 2], [2]]
    assert asyncio.run(ask_until_answered([99], ask, timeout_s=0)) == {}
