"""Calls between the processes of a cluster: pooled connections, the cluster secret, typed errors, known outcomes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import structlog
import urllib3
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError

from myqueue.protocol import errors, http_headers


class NoAnswer(errors.Unavailable):
    """No response, or not in time; `outcome` says whether the request can have been carried out."""


class ConnectionRefused(NoAnswer):
    """Nothing listens there: the process does not run."""


@dataclass(frozen=True, slots=True)
class CallResponse:
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes

    def json(self) -> Any:
        """None for an answer without a body."""
        return json.loads(self.body) if self.body else None

    def checked_json(self) -> Any:
        """Errors are raised as their classes."""
        if self.status >= 400:
            raise self.error()
        return self.json()

    def error(self) -> errors.MyQueueError:
        """The typed error that an answer of 400 or more stands for."""
        try:
            body = json.loads(self.body)
        except ValueError:
            body = None
        retry_after = self.headers.get("retry-after", "")
        return errors.from_body(body, self.status, float(retry_after) if retry_after.isdecimal() else None)


class Caller:
    def __init__(self, secret: str, *, connect_timeout_s: float = 1.0, connections_per_host: int = 32) -> None:
        self._secret = secret
        self._connect_timeout_s = connect_timeout_s
        # No retries here: only the caller can decide whether a repetition is safe.
        self._pool = urllib3.PoolManager(num_pools=64, maxsize=connections_per_host, block=False, retries=False)

    def json(
        self,
        method: str,
        url: str,
        body: object | None = None,
        *,
        timeout_s: float = 2.0,
        extra_headers: Mapping[str, str] | None = None,
    ) -> Any:
        """The answer's JSON, None for an answer without a body; errors are raised as their classes."""
        payload = None if body is None else json.dumps(body).encode()
        return self.call(method, url, payload, timeout_s=timeout_s, extra_headers=extra_headers).checked_json()

    def call(
        self,
        method: str,
        url: str,
        body: bytes | None = None,
        *,
        timeout_s: float = 2.0,
        extra_headers: Mapping[str, str] | None = None,
    ) -> CallResponse:
        """Any status. NoAnswer when there is none; connecting and reading each take at most `timeout_s`."""
        sent = {http_headers.SECRET: self._secret, **(extra_headers or {})}
        if body is not None:
            sent["Content-Type"] = "application/json"
        request_id = structlog.contextvars.get_contextvars().get("request_id")
        if request_id:
            sent[http_headers.REQUEST_ID] = request_id
        timeout = urllib3.Timeout(connect=min(self._connect_timeout_s, timeout_s), read=timeout_s)
        try:
            answer = self._pool.request(method, url, body=body, headers=sent, timeout=timeout, redirect=False)
        except (NewConnectionError, ConnectTimeoutError) as error:
            kind = ConnectionRefused if isinstance(error.__cause__, ConnectionRefusedError) else NoAnswer
            raise kind(f"cannot connect to {url}", outcome="not_written") from error
        except HTTPError as error:
            # At least a part was sent: the outcome is unknown.
            raise NoAnswer(f"no answer from {url}: {type(error).__name__}", outcome="unknown") from error
        headers = {name.lower(): value for name, value in answer.headers.items()}
        return CallResponse(answer.status, headers, answer.data)

    def close(self) -> None:
        self._pool.clear()
