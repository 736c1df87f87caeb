"""Runs of jobs as the processes that make them speak to the write manager, and the figures as everybody reads them."""

import time
import uuid
from typing import Any

import requests

from myqueue.protocol import http_headers, internal
from tests.calls import Calls, token_of
from tests.cluster import Cluster

MINUTE_MS = 60_000


def this_minute() -> int:
    return time.time_ns() // 1_000_000 // MINUTE_MS * MINUTE_MS


class Inside:
    """What jobs say to the write manager, with the secret."""

    def __init__(self, stack: Cluster) -> None:
        self._url = stack.internal_url
        self._headers = {http_headers.SECRET: stack.secret}

    def post(self, path: str, body: object, more: dict[str, str] | None = None) -> requests.Response:
        given = {**self._headers, http_headers.REQUEST_ID: uuid.uuid4().hex, **(more or {})}
        return requests.post(self._url + path, json=body, headers=given, timeout=15)

    def begin(self, body: object, key: str | None = None) -> requests.Response:
        return self.post(internal.BEGIN_RUN.path, body, None if key is None else {http_headers.IDEMPOTENCY_KEY: key})


class Run:
    """A run that was begun, and what is posted in its name."""

    def __init__(self, calls: Calls, inside: Inside, job: str, **more: object) -> None:
        self._calls = calls
        self._inside = inside
        answer = inside.begin({"job": job, "holder": "test", **more})
        assert answer.status_code == 201, answer.text
        self.begun = answer.json()
        self.path = f"{internal.BEGIN_RUN.path}/{self.begun['run_id']}"
        self.token = token_of(answer)  # of the last write

    def results(self, **body: object) -> requests.Response:
        answer = self._inside.post(f"{self.path}/results", body)
        if http_headers.TOKEN in answer.headers:
            self.token = token_of(answer)
        return answer

    def taken(self, **body: object) -> dict[str, Any]:
        answer = self.results(**body)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def end(self, outcome: str = "succeeded", **more: object) -> requests.Response:
        return self._inside.post(f"{self.path}/end", {"outcome": outcome, **more})

    def renew(self) -> requests.Response:
        return self._inside.post(f"{self.path}/renew", {})

    def partitions(self, topic: str, **query: object) -> list[dict[str, Any]]:
        return self._listed("partitions", "partitions", topic=topic, **query)

    def minutes(self, topic: str, **query: object) -> list[dict[str, Any]]:
        return self._listed("topics", "topics", topic=topic, **query)

    def lags(self, **query: object) -> list[dict[str, Any]]:
        return self._listed("consumers", "consumers", **query)

    def totals(self, what: str, **query: object) -> list[dict[str, Any]]:
        return self._listed(what, f"{what}/totals", **query)

    def _listed(self, what: str, path: str, **query: object) -> list[dict[str, Any]]:
        """As either read manager sees it after the last results."""
        both = [self._calls.get(f"/v1/stats/{path}", self.token, **query) for _ in range(2)]
        assert [answer.status_code for answer in both] == [200, 200], both[0].text
        assert both[0].json() == both[1].json()
        found: list[dict[str, Any]] = both[0].json()[what]
        return found
