"""A stack as a Python object, for tests, demos and benchmarks."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal

from stack import commands
from stack.config import StackError, load_config
from stack.home import Home, Layout, Secrets
from stack.ports import HOST, choose_inner_ports
from stack.postgres import DATABASE, DATABASE_USER
from stack.services import INTERNAL, database_hosts
from stack.status import Report, read_status


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
        storage: Literal["disk", "memory"] | None = None,
    ) -> None:
        self.home = Home(home.absolute())
        self._config = load_config(
            home=home,
            port=port or free_port(),
            services=",".join(services),
            brokers=brokers,
            read_managers=read_managers,
            storage=storage,
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
    def internal_url(self) -> str:
        """The write manager's internal listener."""
        return self.address_of(INTERNAL)

    @property
    def secrets(self) -> Secrets:
        return self.home.secrets()

    def database(self, first: str = "postgres-1") -> Database:
        return Database(database_hosts(self._layout(), first), DATABASE_USER, self.secrets.database_password, DATABASE)

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
