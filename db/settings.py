"""The settings of a process that talks to the metadata database."""

from typing import Annotated

from pydantic import BaseModel, Field, SecretStr, field_validator
from pydantic_settings import NoDecode

from db.engine import Address


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
    def database(self) -> Address:
        return Address(
            hosts=self.database_hosts,
            user=self.database_user,
            password=self.database_password,
            name=self.database_name,
            spread=self.database_spread,
        )
