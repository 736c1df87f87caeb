"""Where results go: the write manager's internal address and the cluster's secret, from settings or the local stack."""

import json
import subprocess
import sys
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from myqueue.http_connection import base_url
from spark.config import CHECKOUT, SparkSettings
from spark.failure import WRONG_USAGE, SparkFailure

_ASK_TIMEOUT_S = 30.0
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Access:
    url: str
    write_manager_url: str
    cluster_secret: str = field(repr=False)


def reading_url(settings: SparkSettings) -> str:
    """The cluster's address; when nobody says one, that of the stack in this checkout, if there is one."""
    if "url" in settings.model_fields_set:
        return settings.url
    stack = _local_stack()
    return settings.url if stack is None else stack.url


def access(settings: SparkSettings) -> Access:
    given_url, secret = settings.write_manager_url, settings.cluster_secret
    if given_url is not None and secret is not None:
        return Access(settings.url, given_url, secret.get_secret_value())
    if given_url is None and secret is None:
        stack = _local_stack()
        if stack is not None and ("url" not in settings.model_fields_set or is_same(stack.url, settings.url)):
            return stack
    raise SparkFailure(
        f"results of jobs go to the write manager's internal listener: set MYQUEUE_WRITE_MANAGER_URL and"
        f" MYQUEUE_CLUSTER_SECRET of the cluster at {settings.url}. (Both are found by themselves for the stack that"
        " `make up` started in this checkout.)",
        WRONG_USAGE,
    )


def is_same(one: str, other: str) -> bool:
    return _place(one) == _place(other)


def _place(url: str) -> tuple[str, str, int | None, str]:
    parts = urlsplit(base_url(url))
    host = parts.hostname or ""
    return (
        parts.scheme,
        "127.0.0.1" if host == "localhost" else host,
        parts.port or _PORTS.get(parts.scheme),
        parts.path,
    )


def _local_stack() -> Access | None:
    """None if none is running."""
    command = [sys.executable, "-m", "stack", "access"]
    try:
        asked = subprocess.run(
            command, cwd=CHECKOUT, capture_output=True, text=True, timeout=_ASK_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise SparkFailure(
            f"`python -m stack access` did not answer within {_ASK_TIMEOUT_S:.0f} s; set MYQUEUE_URL,"
            " MYQUEUE_WRITE_MANAGER_URL and MYQUEUE_CLUSTER_SECRET instead"
        ) from None
    if asked.returncode != 0:
        return None
    said = json.loads(asked.stdout)
    return Access(base_url(said["url"]), said["write_manager_url"], said["cluster_secret"])
