"""Waits for what a query that subscribes to a pattern needs: it lists topics without a token."""

import requests

from tests.waiting import until

LOOKS = 10  # in a row: the read managers answer in turn, each from what its own standby has replayed
TIMEOUT_S = 10.0


def await_listed(url: str, *topics: str) -> None:
    def is_listed() -> bool:
        looks = (requests.get(f"{url}/topics", timeout=TIMEOUT_S).json().get("topics", ()) for _ in range(LOOKS))
        return all(set(topics) <= set(names) for names in looks)

    until(is_listed, within_s=20, what=f"every read manager lists {topics}")
