"""Metadata is read from a cache of a moment; a session token reads past it."""

import requests

from tests.calls import token_of
from tests.waiting import until

ROUNDS = 5


def names(answer: requests.Response) -> list[str]:
    return list(answer.json().get("topics", ()))


def test_a_change_shows_at_once_with_its_token_and_soon_without(url: str, topic_name: str) -> None:
    with requests.Session() as session:
        for number in range(ROUNDS):
            name = f"{topic_name}-{number}"
            described = f"{url}/v1/topics/{name}"
            session.get(url + "/topics", timeout=10)  # both read managers have an answer
            session.get(url + "/topics", timeout=10)
            created = session.post(url + "/topics", json={"name": name, "partitions": 1}, timeout=10)
            token = token_of(created)
            assert name in names(session.get(url + "/topics", headers=token, timeout=10))
            assert session.get(described, timeout=10).status_code == 200, "a missing topic is never an old answer"
            until(lambda name=name: name in names(session.get(url + "/topics", timeout=10)), within_s=15)  # type: ignore[misc]

            deleted = session.delete(described, timeout=10)
            token = token_of(deleted)
            assert session.get(described, headers=token, timeout=10).status_code == 404
            until(lambda described=described: session.get(described, timeout=10).status_code == 404, within_s=15)  # type: ignore[misc]
