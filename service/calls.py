"""Calls between the processes of a cluster: pooled connections, the cluster secret, typed errors, known outcomes."""

import json
from collections.abc import Mapping
from typing import Any

import structlog
import urllib3
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError

from myqueue.protocol import errors, http_headers


class NoAnswer(errors.Unavailable):
    """No response, or not in time; `outcome` says whether the request can have been carried out."""


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
        """The answer's JSON; None for an answer without a body."""
        given = {"Content-Type": "application/json"} if body is not None else {}
        payload = None if body is None else json.dumps(body).encode()
        answer = self.raw(method, url, payload, timeout_s=timeout_s, extra_headers={**given, **(extra_headers or {})})
        return json.loads(answer) if answer else None

    def raw(
        self,
        method: str,
        url: str,
        body: bytes | None = None,
        *,
        timeout_s: float = 2.0,
        extra_headers: Mapping[str, str] | None = None,
    ) -> bytes:
        sent = {http_headers.SECRET: self._secret, **(extra_headers or {})}
        request_id = structlog.contextvars.get_contextvars().get("request_id")
        if request_id:
            sent[http_headers.REQUEST_ID] = request_id
        timeout = urllib3.Timeout(connect=min(self._connect_timeout_s, timeout_s), read=timeout_s)
        try:
            answer = self._pool.request(method, url, body=body, headers=sent, timeout=timeout, redirect=False)
        except (NewConnectionError, ConnectTimeoutError) as error:
            raise NoAnswer(f"cannot connect to {url}", outcome="not_written") from error
        except HTTPError as error:
            # At least a part was sent: the outcome is unknown.
            raise NoAnswer(f"no answer from {url}: {type(error).__name__}", outcome="unknown") from error
        if answer.status >= 400:
            raise self._error(answer)
        return answer.data

    def _error(self, answer: urllib3.BaseHTTPResponse) -> errors.MyQueueError:
        try:
            body = json.loads(answer.data)
        except ValueError:
            body = None
        retry_after = answer.headers.get("Retry-After", "")
        return errors.from_body(body, answer.status, float(retry_after) if retry_after.isdecimal() else None)

    def close(self) -> None:
        self._pool.clear()
