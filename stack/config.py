"""Settings of a stack: read from the environment once, then stored in its home."""

from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

CHECKOUT = Path(__file__).resolve().parent.parent
ENV_PREFIX = "MYQUEUE_"
DEFAULT_MAX_CLIENT_CONNECTIONS = 4096  # behind NAT one address may be many clients


class StackError(Exception):
    """Ends a stack command with a message and an exit code."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class StackConfig(BaseSettings):
    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="ignore")

    home: Path = Field(CHECKOUT / ".myqueue", description="the one folder for data, run/ and log/")
    port: int | None = Field(None, ge=1, le=65535, description="port of the stack; 80 when it may be bound, else 8080")
    brokers: int = Field(3, ge=1, le=32, description="brokers to run")
    write_managers: int = Field(2, ge=1, le=2, description="write managers to run: one is active, one its standby")
    read_managers: int = Field(2, ge=1, le=16, description="read managers to run")
    storage: Literal["disk", "memory"] = Field("disk", description="where brokers keep messages")
    max_client_connections: int = Field(
        DEFAULT_MAX_CLIENT_CONNECTIONS,
        ge=1,
        le=6144,  # fits worker_connections in nginx.conf
        description="requests that one client address may have in flight; more get a 429",
    )
    database_hang_s: float = Field(
        4.5,
        ge=0,
        description="a PostgreSQL server with three reads in a row that failed, for this long in all, is killed and"
        " restarted; 0: never",
    )
    use_system: bool = Field(False, description="nginx and PostgreSQL of the machine instead of the packages' own")
    services: str = Field("", description="names of the only services to run, separated by commas; empty: all")

    @property
    def only(self) -> frozenset[str]:
        return frozenset(name.strip() for name in self.services.split(",") if name.strip())


def load_config(**given: object) -> StackConfig:
    """`given` overrides the environment. All bad values are reported at once."""
    try:
        config = StackConfig(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
    except ValidationError as error:
        lines = [
            f"  {ENV_PREFIX}{str(problem['loc'][0]).upper()}: {problem['msg']}"
            for problem in error.errors(include_url=False, include_input=False)
        ]
        raise StackError("settings are not right:\n" + "\n".join(lines), exit_code=2) from None
    return config.model_copy(update={"home": config.home.expanduser().absolute()})
