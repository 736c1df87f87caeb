"""The statistics API: posts runs and results to the write manager's internal listener, reads figures publicly."""

import random
import time
import uuid
from collections.abc import Mapping
from typing import Any

import requests

from myqueue.protocol import errors, http_headers, internal, routes
from myqueue.protocol.limits import MAX_PAGE
from myqueue.protocol.models import BeginRun, EndRun, RunResults
from myqueue.transport import SHORTEST_ATTEMPT_S, RetryPolicy, SessionToken, Transport, retry_after_s
from spark.config import Access

Json = dict[str, Any]

RETRY = RetryPolicy(deadline_s=15.0)
RESULTS_S = 60.0  # to post results, all attempts together; the lease is renewed meanwhile
CONNECT_S = 2.0
READ_S = 6.0  # of one attempt, so that there is time for a retry
_LONGEST_MESSAGE = 2000


class StatsReader:
    """May be shared by threads. Reads carry the newest session token, so that they see earlier writes."""

    def __init__(self, url: str, *, retry: RetryPolicy = RETRY) -> None:
        self.url = url
        self.transport = Transport(url, retry=retry)
        self._retry = retry
        self._http = requests.Session()
        self._http.trust_env = False  # no proxy sees the secret
        self._token = SessionToken()

    def runs(self, job: str, limit: int) -> list[Json]:
        """Newest first."""
        return self._list(routes.LIST_RUNS.path, "runs", job=job, limit=limit)

    def partitions(self) -> list[Json]:
        return self._list(routes.PARTITION_STATS.path, "partitions")

    def consumers(self) -> list[Json]:
        return self._pages(routes.CONSUMER_STATS.path, "consumers")

    def topics(self, minutes: int) -> list[Json]:
        return self._list(routes.TOPIC_STATS.path, "topics", minutes=minutes)

    def listed_consumers(self) -> list[Json]:
        return self._pages(routes.LIST_CONSUMERS.path, "consumers")

    def close(self) -> None:
        self.transport.close()
        self._http.close()

    def _list(self, path: str, name: str, **query: str | int) -> list[Json]:
        found: list[Json] = self._answer(path, query)[name]
        return found

    def _pages(self, path: str, name: str) -> list[Json]:
        found: list[Json] = []
        query: dict[str, str | int] = {"limit": MAX_PAGE}
        while True:
            body = self._answer(path, query)
            found += body[name]
            if body.get("next") is None:
                return found
            query["after"] = body["next"]

    def _answer(self, path: str, query: Mapping[str, str | int]) -> Json:
        token = self._token.value
        sent = {} if token is None else {http_headers.TOKEN: token}
        return self._call("GET", self.url + path, sent, query, whom=self.url, within_s=self._retry.deadline_s)

    def _call(
        self,
        method: str,
        url: str,
        sent: Mapping[str, str],
        query: Mapping[str, str | int],
        body: Json | None = None,
        *,
        whom: str,
        within_s: float,
        read_s: float = READ_S,
    ) -> Json:
        """Retries until the deadline: all of these calls are safe to repeat. Errors name `whom`."""
        deadline = time.monotonic() + within_s
        failures = 0
        while True:
            try:
                timeout = (CONNECT_S, max(SHORTEST_ATTEMPT_S, min(read_s, deadline - time.monotonic())))
                answer = self._http.request(
                    method, url, params=query, json=body, headers=dict(sent), timeout=timeout, allow_redirects=False
                )
                self._token.learn(answer.headers.get(http_headers.TOKEN))
                return _body_of(answer)
            except requests.RequestException as error:
                failure: errors.MyQueueError = errors.Unavailable(f"no answer from {whom}: {type(error).__name__}")
            except errors.MyQueueError as error:
                if not error.retriable:
                    raise
                failure = error
            failures += 1
            pause_s = self._retry.pause_s(failures, failure.retry_after_s, random.random())  # noqa: S311
            if time.monotonic() + pause_s >= deadline:
                raise failure
            time.sleep(pause_s)


def _body_of(answer: requests.Response) -> Json:
    try:
        body = answer.json()
    except ValueError:
        body = None
    if answer.status_code in (200, 201) and isinstance(body, dict):
        return body
    raise errors.from_body(body, answer.status_code, retry_after_s(answer.headers.get("Retry-After")))


class StatsClient(StatsReader):
    def __init__(self, access: Access, *, retry: RetryPolicy = RETRY) -> None:
        super().__init__(access.url, retry=retry)
        self._access = access

    def begin(self, job: str, holder: str, trigger: str, tick: int | None) -> Json:
        """Raises JobRunning if another run of the job is active, TickTaken if there was one at this tick."""
        body = BeginRun.model_validate({"job": job, "holder": holder, "trigger": trigger, "tick": tick})
        # A retry after a lost response gets the same run, not TickTaken.
        key = uuid.uuid4().hex if tick is None else f"{holder}:{job}:{tick}"
        return self._write(internal.BEGIN_RUN.path, body.model_dump(), {http_headers.IDEMPOTENCY_KEY: key})

    def renew(self, run_id: int, *, within_s: float) -> Json:
        """Raises RunEnded if the lease has expired."""
        return self._write(internal.RENEW_RUN.path_for(run_id=run_id), {}, within_s=within_s)

    def post(self, run_id: int, results: RunResults) -> Json:
        path = internal.POST_RESULTS.path_for(run_id=run_id)
        return self._write(path, results.model_dump(mode="json"), within_s=RESULTS_S, read_s=RESULTS_S / 2)

    def end(self, run_id: int, *, succeeded: bool, rows: int, message: str | None) -> None:
        text = None if message is None else message.replace("\x00", " ")[:_LONGEST_MESSAGE]
        body = EndRun(outcome="succeeded" if succeeded else "failed", rows=rows, message=text)
        self._write(internal.END_RUN.path_for(run_id=run_id), body.model_dump())

    def _write(
        self,
        path: str,
        body: Json,
        more: Mapping[str, str] | None = None,
        *,
        within_s: float | None = None,
        read_s: float = READ_S,
    ) -> Json:
        try:
            return self._call(
                "POST",
                self._access.write_manager_url + path,
                {http_headers.SECRET: self._access.cluster_secret, **(more or {})},
                {},
                body,
                whom="the write manager's internal listener",
                within_s=self._retry.deadline_s if within_s is None else within_s,
                read_s=read_s,
            )
        except errors.Unauthorized:
            message = "the write manager refuses the secret: MYQUEUE_CLUSTER_SECRET is not that of this cluster"
            raise errors.Unauthorized(message) from None
