"""The simple API as plain HTTP requests: what any client could send, and nothing that hides an answer."""

from collections.abc import Callable
from typing import Any

import requests

from myqueue.protocol import http_headers
from tests.waiting import until

TIMEOUT_S = 15.0
# For the {parameters} of paths in the table of routes.
PARAMETERS = {
    "topic": "bad-input",
    "topic_id": "9f1d3c52-8d0a-4f6e-9a51-1b7f3f3f9c11",
    "partition_id": "0",
    "range": "0-1",
    "consumer_id": "2000000000",
    "broker_id": "1",
}


class Calls:
    """Each method sends one request and returns the answer as it came."""

    def __init__(self, url: str, session: requests.Session) -> None:
        self.url = url
        self._session = session

    def get(self, path: str, headers: dict[str, str] | None = None, **query: object) -> requests.Response:
        return self._session.get(self.url + path, params=_given(query), headers=headers, timeout=TIMEOUT_S)

    def post(self, path: str, body: object, headers: dict[str, str] | None = None) -> requests.Response:
        return self._session.post(self.url + path, json=body, headers=headers, timeout=TIMEOUT_S)

    def create_topic(self, name: str, **settings: object) -> requests.Response:
        return self.post("/topics", {"name": name, **settings})

    def register_producer(self, topic: str, **settings: object) -> requests.Response:
        return self.post("/producer/register", {"topic": topic, **settings})

    def register_consumer(self, topic: str, **settings: object) -> requests.Response:
        return self.post("/consumer/register", {"topic": topic, **settings})

    def produce(
        self, topic: str, producer_id: int, message: object, headers: dict[str, str] | None = None, **more: object
    ) -> requests.Response:
        body = {"topic": topic, "producer_id": producer_id, "message": message, **more}
        return self.post("/producer/produce", body, headers)

    def consume(
        self, topic: str, consumer_id: int, headers: dict[str, str] | None = None, **more: object
    ) -> requests.Response:
        return self.get("/consumer/consume", headers, topic=topic, consumer_id=consumer_id, **more)

    def size(self, topic: str, consumer_id: int) -> requests.Response:
        return self.get("/size", topic=topic, consumer_id=consumer_id)

    def partitions(self, topic: str, headers: dict[str, str] | None = None) -> requests.Response:
        return self.get(f"/topics/{topic}/partitions", headers)

    # What most tests need before they begin; these insist on success.

    def topic(self, name: str, partitions: int = 1) -> str:
        _created(lambda: self.create_topic(name, partitions=partitions))
        return name

    def producer(self, topic: str, **settings: object) -> int:
        return int(_created(lambda: self.register_producer(topic, **settings))["producer_id"])

    def consumer(self, topic: str, **settings: object) -> int:
        return int(_created(lambda: self.register_consumer(topic, **settings))["consumer_id"])

    def sent(self, topic: str, producer_id: int, message: object, **more: object) -> tuple[int, int]:
        """Partition and offset of a message that was taken."""
        answer = self.produce(topic, producer_id, message, None, **more)
        assert answer.status_code == 200, answer.text
        return answer.json()["partition_id"], answer.json()["offset"]

    def drained(self, topic: str, consumer_id: int, **more: object) -> list[dict[str, Any]]:
        """Everything a consumer has not read yet, in the order in which it comes."""
        messages = []
        while (answer := self.consume(topic, consumer_id, None, **more)).status_code == 200:
            messages.append(answer.json())
        assert answer.status_code == 204, answer.text
        return messages


def token_of(answer: requests.Response) -> dict[str, str]:
    """The header of a read that is to see this write."""
    return {http_headers.TOKEN: answer.headers[http_headers.TOKEN]}


def _created(send: Callable[[], requests.Response]) -> dict[str, Any]:
    """As clients do, sends again what a busy cluster has not written."""

    def answered() -> list[requests.Response]:
        answer = send()
        is_refused = answer.status_code == 503 and answer.json().get("outcome") == "not_written"
        return [] if is_refused else [answer]

    [answer] = until(answered, within_s=20, what="the cluster takes the request")
    assert answer.status_code == 201, answer.text
    body: dict[str, Any] = answer.json()
    return body


def _given(values: dict[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in values.items() if value is not None}


def assert_failure(
    answer: requests.Response,
    status: int,
    error_code: int,
    message: str | None = None,
    *,
    outcome: str | None = "not_written",
    retriable: bool = False,
    details: dict[str, Any] | None = None,
) -> str:
    """The answer is exactly the error body of the error table; returns its message for a closer look."""
    assert answer.status_code == status, answer.text
    assert answer.headers["Content-Type"] == "application/json", answer.text
    body = answer.json()
    expected = {
        "status": "failure",
        "error_code": error_code,
        "message": body["message"] if message is None else message,
        "retriable": retriable,
        "request_id": answer.headers["X-Request-Id"],
    }
    if outcome is not None:
        expected["outcome"] = outcome
    if details is not None:
        expected["details"] = details
    assert body == expected, body
    assert body["message"]
    return str(body["message"])
