"""A stack as a Python object, for tests, demos and benchmarks."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal

import requests

from myqueue.protocol.http_headers import SECRET
from myqueue.protocol.internal import WRITE_MANAGER_STATUS
from stack import commands
from stack.config import StackError, load_config
from stack.home import Home, Layout, Secrets
from stack.ports import HOST, choose_inner_ports
from stack.postgres import DATABASE, DATABASE_USER
from stack.services import database_hosts, internal_of, internal_urls, primary_of, write_manager_names
from stack.status import TIMEOUT_S, Report, read_status


@dataclass(frozen=True)
class Database:
    """Address and login of the database: `hosts` is host:port, comma separated, the first one preferred."""

    hosts: str
    user: str
    password: str
    name: str


class LocalStack:
    """`with LocalStack(tmp_path / "home") as stack: requests.get(stack.url + "/topics")`"""

    def __init__(
        self,
        home: Path,
        port: int | None = None,
        *,
        services: Iterable[str] = (),
        brokers: int | None = None,
        read_managers: int | None = None,
        write_managers: int | None = None,
        storage: Literal["disk", "memory"] | None = None,
        database_hang_s: float | None = None,
    ) -> None:
        self.home = Home(home.absolute())
        self._config = load_config(
            home=home,
            port=port or free_port(),
            services=",".join(services),
            brokers=brokers,
            read_managers=read_managers,
            write_managers=write_managers,
            storage=storage,
            database_hang_s=database_hang_s,
        )

    def up(self) -> str:
        return commands.up(self._config)

    def down(self) -> None:
        commands.down(self.home)

    def clean(self) -> None:
        commands.clean(self.home)

    def stop(self, name: str) -> None:
        commands.stop(self.home, name)

    def start(self, name: str) -> None:
        commands.start(self.home, name)

    def promote(self, name: str, *, anyway: bool = False) -> None:
        commands.promote(self.home, name, anyway=anyway)

    def scale(self, *, read_managers: int | None = None, brokers: int | None = None) -> None:
        commands.scale(load_config(home=self.home.root, read_managers=read_managers, brokers=brokers))

    def status(self) -> Report:
        return read_status(self.home)

    @property
    def url(self) -> str:
        return self._layout().url

    def pid(self, name: str) -> int:
        return int(self.home.pid_file(name).read_text())

    def port_of(self, name: str) -> int:
        return self._layout().ports[name]

    def address_of(self, name: str) -> str:
        return f"http://{HOST}:{self.port_of(name)}"

    @property
    def internal_urls(self) -> list[str]:
        """The write managers' internal listeners."""
        return internal_urls(self._layout())

    def active_write_manager(self) -> str:
        """The name of the one that is active: the highest epoch counts."""
        names = write_manager_names(self._layout().stack_config())
        epochs = {name: self._epoch_of(name) for name in names}
        active = max(names, key=lambda name: epochs[name])
        if not epochs[active]:
            raise StackError("no write manager is active")
        return active

    def _epoch_of(self, write_manager: str) -> int:
        """0 if it is not active."""
        url = self.address_of(internal_of(write_manager)) + WRITE_MANAGER_STATUS.path
        try:
            status = requests.get(url, headers={SECRET: self.secrets.cluster_secret}, timeout=TIMEOUT_S).json()
        except (requests.RequestException, ValueError):
            return 0
        return int(status["epoch"]) if status.get("active") else 0

    @property
    def internal_url(self) -> str:
        """The internal listener of the write manager that is active."""
        return self.address_of(internal_of(self.active_write_manager()))

    @property
    def secrets(self) -> Secrets:
        return self.home.secrets()

    @property
    def primary(self) -> str:
        return primary_of(self.home, self._layout())

    def database(self, first: str | None = None) -> Database:
        """`first`: the preferred server, the primary unless it is given."""
        return Database(
            database_hosts(self._layout(), first or self.primary),
            DATABASE_USER,
            self.secrets.database_password,
            DATABASE,
        )

    def _layout(self) -> Layout:
        layout = self.home.layout()
        if layout is None:
            raise StackError("this stack was never up")
        return layout

    def __enter__(self) -> "LocalStack":
        self.up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clean()


def free_port() -> int:
    return choose_inner_ports(["front"], {}, taken=0)["front"]
