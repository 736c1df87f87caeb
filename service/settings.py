"""Settings of a process: flags over environment variables over defaults, all bad values reported at once."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

ENV_PREFIX = "MYQUEUE_"


class ServiceSettings(BaseSettings):
    """Shared by all services. The unit of a number is part of its name."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="ignore")

    host: str = Field("127.0.0.1", description="address to listen on")
    cluster_secret: SecretStr = Field(
        description="secret that the processes of one cluster share; at least 16 characters", min_length=16
    )
    log_level: str = Field("info", pattern="^(debug|info|warning|error)$", description="debug, info, warning or error")
    threads: int = Field(32, ge=2, le=1024, description="requests worked on at the same time")
    max_waiting_requests: int = Field(
        512, ge=1, description="requests that may wait for a thread before 503 is answered"
    )
    max_open_requests: int = Field(
        4096, ge=1, description="requests on the event loop at the same time, waiting ones too, before 503 is answered"
    )
    max_open_body_bytes: int = Field(
        64 << 20,
        ge=1,
        description="bytes of request bodies in memory, over all listeners of the process, before 503 is answered",
    )
    max_body_bytes: int = Field(8 << 20, ge=1024, description="largest request body")
    drain_timeout_s: float = Field(5.0, ge=0, description="how long requests in flight may take when the process stops")


S = TypeVar("S", bound=ServiceSettings)


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def env_of(name: str) -> str:
    return ENV_PREFIX + name.upper()


def describe_default(field: Any) -> str:
    if field.is_required():
        return "required"
    if isinstance(field.default, tuple):
        return ",".join(field.default)
    return "none" if field.default in (None, "") else str(field.default)


def load(cls: type[S], program: str, description: str, argv: Sequence[str] | None = None) -> S:
    """Exits with 2 and every problem at once, so that one start finds them all."""
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=description)
    for name, field in cls.model_fields.items():
        parser.add_argument(
            flag_of(name),
            dest=name,
            metavar="VALUE",
            default=argparse.SUPPRESS,
            help=f"{field.description} (environment {env_of(name)}, default {describe_default(field)})".replace(
                "%", "%%"
            ),
        )
    given = vars(parser.parse_args(argv))
    try:
        return cls(**given)
    except ValidationError as error:
        print(f"{program}: settings are not right:", file=sys.stderr)
        for problem in error.errors(include_url=False, include_input=False):
            name = str(problem["loc"][0]) if problem["loc"] else "settings"
            print(f"  {flag_of(name)} or {env_of(name)}: {problem['msg']}", file=sys.stderr)
        sys.exit(2)
