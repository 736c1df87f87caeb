"""Fan-out: every key from the first address that knows it, addresses shared, failures passed over."""

from myqueue.protocol.errors import Unavailable
from service.fanout import FanOut


def test_the_first_address_that_knows_answers() -> None:
    asked: list[tuple[str, tuple[int, ...]]] = []

    def question(address: str, keys: list[int]) -> dict[int, str]:
        asked.append((address, tuple(sorted(keys))))
        if address == "dead":
            raise Unavailable()
        return {key: address for key in keys if address == "all" or key == 1}

    fan_out: FanOut[int, str] = FanOut(4, "test")
    answers = fan_out.ask({1: ["some", "all"], 2: ["some", "dead", "all"], 3: ["dead"], 4: []}, question)
    fan_out.stop()
    assert answers == {1: "some", 2: "all"}
    assert sorted(asked) == [("all", (2,)), ("dead", (2,)), ("dead", (3,)), ("some", (1, 2))]
