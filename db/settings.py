"""The settings of a process that talks to the metadata database."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import BaseModel, Field, SecretStr, field_validator
from pydantic_settings import NoDecode


class DatabaseAddress(BaseModel):
    """Where the trio is. The order of hosts is the order of preference."""

    hosts: Sequence[str]
    user: str
    password: SecretStr
    name: str
    spread: bool = False  # over hosts that are equally good, instead of preferring the first


class DatabaseSettings(BaseModel):
    """Mixed into a manager's settings."""

    database_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        description="host:port of every PostgreSQL server, separated by commas, in order of preference"
    )
    database_spread: bool = Field(
        False, description="spread connections over servers that are equally good, instead of preferring the first"
    )
    database_user: str = Field("myqueue", description="PostgreSQL user")
    database_password: SecretStr = Field(SecretStr(""), description="PostgreSQL password")
    database_name: str = Field("myqueue", description="PostgreSQL database")

    @field_validator("database_hosts", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            hosts = tuple(host.strip() for host in value.split(",") if host.strip())
            if not hosts or any(not host.rpartition(":")[2].isdecimal() for host in hosts):
                raise ValueError("must be host:port, several separated by commas")
            return hosts
        return value

    @property
    def database(self) -> DatabaseAddress:
        return DatabaseAddress(
            hosts=self.database_hosts,
            user=self.database_user,
            password=self.database_password,
            name=self.database_name,
            spread=self.database_spread,
        )
