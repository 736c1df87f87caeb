"""The statistics API: posts runs and results to the write manager's internal listener, reads figures publicly."""

import random
import time
import uuid
from collections.abc import Mapping
from typing import Any

from myqueue.protocol import errors, http_headers, internal, routes
from myqueue.protocol.limits import MAX_PAGE
from myqueue.protocol.models import BeginRun, EndRun, Outcome, RunResults
from myqueue.transport import SHORTEST_ATTEMPT_S, RetryPolicy, Timeouts, Transport
from service.active_manager import ManagerCaller, WriteManagerFollower
from service.calls import Caller, CallResponse, NoAnswer
from spark.config import Access

Json = dict[str, Any]

RETRY = RetryPolicy(deadline_s=15.0, connect_deadline_s=None)  # jobs start together with the cluster
RESULTS_S = 60.0  # to post results, all attempts together; the lease is renewed meanwhile
CONNECT_S = 2.0
READ_S = 6.0  # of one attempt, so that there is time for a retry
_LONGEST_MESSAGE = 2000


class StatsReader:
    """May be shared by threads. Reads carry the newest session token, so that they see earlier writes."""

    def __init__(self, url: str, *, retry: RetryPolicy = RETRY) -> None:
        self.url = url
        self.transport = Transport(url, timeouts=Timeouts(CONNECT_S, READ_S), retry=retry)

    def runs(self, job: str, limit: int) -> list[Json]:
        """Newest first."""
        return self._rows(routes.LIST_RUNS, "runs", job=job, limit=limit)

    def partitions(self) -> list[Json]:
        return self._rows(routes.PARTITION_STATS, "partitions")

    def consumers(self) -> list[Json]:
        return self._rows(routes.CONSUMER_STATS, "consumers", limit=MAX_PAGE)

    def topics(self, minutes: int) -> list[Json]:
        return self._rows(routes.TOPIC_STATS, "topics", minutes=minutes)

    def totals(self, route: routes.Route, name: str, **query: str | int) -> list[Json]:
        """Of topics or consumers."""
        return self._rows(route, name, **query)

    def listed_consumers(self, *, active_since: int | None = None) -> list[Json]:
        since = {} if active_since is None else {"active_since": active_since}
        return self._rows(routes.LIST_CONSUMERS, "consumers", limit=MAX_PAGE, **since)

    def close(self) -> None:
        self.transport.close()

    def _rows(self, route: routes.Route, name: str, **query: str | int) -> list[Json]:
        """Of all pages."""
        rows: list[Json] = []
        while True:
            body = self.transport.call(route, query=query).body
            rows += body[name]
            if body.get("next") is None:
                return rows
            query["after"] = body["next"]


class StatsClient(StatsReader):
    def __init__(self, access: Access, *, retry: RetryPolicy = RETRY) -> None:
        super().__init__(access.url, retry=retry)
        caller = Caller(access.cluster_secret, connect_timeout_s=CONNECT_S)
        self._managers = ManagerCaller(caller, WriteManagerFollower(access.write_manager_urls))

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

    def end(self, run_id: int, *, succeeded: bool, rows: int, message: str | None, left_out: int = 0) -> None:
        text = None if message is None else message.replace("\x00", " ")[:_LONGEST_MESSAGE]
        outcome: Outcome = "succeeded" if succeeded else "failed"
        body = EndRun(outcome=outcome, rows=rows, left_out=left_out, message=text)
        self._write(internal.END_RUN.path_for(run_id=run_id), body.model_dump())

    def close(self) -> None:
        super().close()
        self._managers.close()

    def _write(
        self,
        path: str,
        body: Json,
        more: Mapping[str, str] | None = None,
        *,
        within_s: float | None = None,
        read_s: float = READ_S,
    ) -> Json:
        """Retries until the deadline: all of these calls are safe to repeat."""
        retry = self.transport.retry
        deadline = time.monotonic() + (retry.deadline_s if within_s is None else within_s)
        failures = 0
        while True:
            try:
                timeout_s = max(SHORTEST_ATTEMPT_S, min(read_s, deadline - time.monotonic()))
                answer = self._managers.call("POST", path, body, timeout_s=timeout_s, extra_headers=more)
                self.transport.token.learn(answer.headers.get(http_headers.TOKEN.lower()))
                return _body_of(answer)
            except NoAnswer as error:
                failure: errors.MyQueueError = errors.Unavailable(
                    f"no answer from a write manager's internal listener: {error.message}"
                )
            except errors.Unauthorized:
                message = "the write manager refuses the secret: MYQUEUE_CLUSTER_SECRET is not that of this cluster"
                raise errors.Unauthorized(message) from None
            except errors.MyQueueError as error:
                if not error.retriable:
                    raise
                failure = error
                self._managers.follow()  # it may be one that lost its way to PostgreSQL, and another one took over
            failures += 1
            pause_s = retry.pause_s(failures, failure.retry_after_s, random.random())  # noqa: S311
            if time.monotonic() + pause_s >= deadline:
                raise failure
            time.sleep(pause_s)


def _body_of(answer: CallResponse) -> Json:
    if answer.status not in (200, 201):
        raise answer.error()
    body: Json = answer.json()
    return body
