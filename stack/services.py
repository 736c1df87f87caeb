"""The services of a stack and how each is started: from a layout to command lines."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from stack import postgres
from stack.account import choose_account
from stack.binaries import find_nginx, find_postgres
from stack.config import CHECKOUT, ENV_PREFIX, StackConfig, StackError
from stack.home import Home, Layout
from stack.nginx import LoadBalancer, WriteManagerAddress
from stack.ports import HOST
from stack.postgres import Trio
from stack.primary_record import read_record
from stack.process import Command

POSTGRES_SERVERS = 3
NGINX = "nginx"
SERVICE_MEMORY_BYTES = 1 << 30

Role = Literal["balancer", "writes", "reads", "broker", "database"]


async def _no_preparation() -> None:
    pass


@dataclass(frozen=True)
class Service:
    name: str
    role: Role
    port: int
    command: Command
    ready: Callable[[int], Awaitable[bool]]  # takes the pid
    after: tuple[str, ...] = ()  # started when these are ready, or after a while anyway
    prepare: Callable[[], Awaitable[None]] = _no_preparation  # of a database: what the arbiter decides
    stop_signal: signal.Signals = signal.SIGTERM
    stop_grace_s: float = 8.0


# Stopped from the front inwards: a service stops before the services that it calls.
STOP_ORDER: tuple[frozenset[Role], ...] = (
    frozenset({"balancer"}),
    frozenset({"reads", "writes"}),
    frozenset({"broker"}),
    frozenset({"database"}),
)


def postgres_names() -> list[str]:
    return [f"postgres-{number}" for number in range(1, POSTGRES_SERVERS + 1)]


def write_manager_names(config: StackConfig) -> list[str]:
    return [f"write-manager-{number}" for number in range(1, config.write_managers + 1)]


def all_names(config: StackConfig) -> list[str]:
    return [
        NGINX,
        *write_manager_names(config),
        *(f"read-manager-{number}" for number in range(1, config.read_managers + 1)),
        *(f"broker-{number}" for number in range(1, config.brokers + 1)),
        *postgres_names(),
    ]


def chosen_names(config: StackConfig) -> list[str]:
    names = all_names(config)
    unknown = config.only - set(names)
    if unknown:
        raise StackError(f"no such service: {', '.join(sorted(unknown))}; there are {', '.join(names)}", exit_code=2)
    return [name for name in names if not config.only or name in config.only]


def inner_port_names(config: StackConfig) -> list[str]:
    """Of all services, also of those that are not to run: their callers need an address."""
    brokers = [name for name in all_names(config) if role_of(name) == "broker"]
    inner = [raft_of(name) for name in brokers] + [data_of(name) for name in brokers]
    inner += [internal_of(name) for name in write_manager_names(config)]
    return [*(name for name in all_names(config) if name != NGINX), *inner]


def internal_of(write_manager: str) -> str:
    """The name of the port at which the other processes reach it."""
    return f"{write_manager}.internal"


def internal_urls(layout: Layout) -> list[str]:
    names = write_manager_names(layout.stack_config())
    return [f"http://{HOST}:{layout.ports[internal_of(name)]}" for name in names]


def raft_of(broker: str) -> str:
    """The name of the port at which other brokers reach it."""
    return f"{broker}.raft"


def data_of(broker: str) -> str:
    """The name of the port of its data plane, which the load balancer uses."""
    return f"{broker}.data"


def role_of(name: str) -> Role:
    if name == NGINX:
        return "balancer"
    kind = name.rpartition("-")[0]
    roles: dict[str, Role] = {
        "write-manager": "writes",
        "read-manager": "reads",
        "broker": "broker",
        "postgres": "database",
    }
    return roles[kind]


def storage_root(home: Home, layout: Layout) -> Path:
    """The folder of the unprivileged user's files: the home, if that user can reach it."""
    return home.root if layout.shelter is None else Path(layout.shelter)


def database_folder(home: Home, layout: Layout) -> Path:
    return home.data if layout.shelter is None else storage_root(home, layout)


def primary_of(home: Home, layout: Layout) -> str:
    """As the record beside the data says; before the first start, the first one."""
    record = read_record(database_folder(home, layout))
    return postgres_names()[0] if record is None else record.primary


def database_hosts(layout: Layout, first: str) -> str:
    names = [first, *(name for name in postgres_names() if name != first)]
    return ",".join(f"{HOST}:{layout.ports[name]}" for name in names)


def trio_of(home: Home, layout: Layout) -> Trio:
    config = layout.stack_config()
    account = choose_account()
    root = storage_root(home, layout)
    return Trio(
        folder=database_folder(home, layout),
        programs=find_postgres(config.use_system, account, None if layout.shelter is None else root),
        ports={name: layout.ports[name] for name in postgres_names()},
        secrets=home.secrets(),
        account=account,
        storage_root=root,
    )


class Plan:
    def __init__(self, home: Home, layout: Layout) -> None:
        self._home = home
        self._layout = layout
        self._config = layout.stack_config()
        self._secrets = home.secrets()
        self._primary = primary_of(home, layout)

    def services(self, run: postgres.RunCommand) -> list[Service]:
        chosen = set(self._layout.services)
        every = list(self._python_services())
        # A machine may have only one of the programs: search for those that are to run.
        if chosen & set(postgres_names()):
            every += self._databases()
        if NGINX in chosen:
            every.append(self._balancer(run))
        return [service for service in every if service.name in chosen]

    def _databases(self) -> Iterable[Service]:
        trio = trio_of(self._home, self._layout)

        async def ready(name: str, pid: int) -> bool:
            return trio.is_ready(name, pid)

        for name in trio.names:
            yield Service(
                name=name,
                role="database",
                port=trio.ports[name],
                command=trio.server_command(name),
                ready=partial(ready, name),
                stop_signal=postgres.STOP_SIGNAL,
            )

    def _python_services(self) -> Iterable[Service]:
        ports = self._layout.ports
        write_managers = write_manager_names(self._config)
        urls = ",".join(internal_urls(self._layout))
        database = {
            "database-user": postgres.DATABASE_USER,
            "database-name": postgres.DATABASE,
        }
        for name in write_managers:
            yield self._python(
                name,
                "write_manager",
                {
                    "name": name,
                    "port": ports[name],
                    "internal-port": ports[internal_of(name)],
                    "database-hosts": database_hosts(self._layout, self._primary),
                    **database,
                },
                after=(self._primary,),
                # The public listener is open only while it is active.
                checked_port=ports[internal_of(name)],
            )
        for number in range(1, self._config.read_managers + 1):
            name = f"read-manager-{number}"
            # Reads are spread over the standbys, whatever the number of read managers.
            standbys = [name for name in postgres_names() if name != self._primary]
            preferred = standbys[(number - 1) % len(standbys)]
            yield self._python(
                name,
                "read_manager",
                {
                    "name": name,
                    "port": ports[name],
                    "endpoint": f"http://{HOST}:{ports[name]}",
                    "leave-s": 0,  # nginx is configured with its address, retries its reads at the other read managers
                    "write-manager-urls": urls,
                    "database-hosts": database_hosts(self._layout, preferred),
                    **database,
                },
                after=(*write_managers, preferred),
            )
        for number in range(1, self._config.brokers + 1):
            name = f"broker-{number}"
            yield self._python(
                name,
                "broker",
                {
                    "broker-id": number,
                    "port": ports[name],
                    "endpoint": f"http://{HOST}:{ports[name]}",
                    "raft-port": ports[raft_of(name)],
                    "raft-address": f"{HOST}:{ports[raft_of(name)]}",
                    "data-port": ports[data_of(name)],
                    "data-address": f"{HOST}:{ports[data_of(name)]}",
                    "data-dir": self._home.data / name,
                    "storage": self._config.storage,
                    "write-manager-urls": urls,
                },
                after=tuple(write_managers),
            )

    def _python(
        self,
        name: str,
        module: str,
        flags: dict[str, object],
        after: tuple[str, ...],
        checked_port: int | None = None,
    ) -> Service:
        arguments = [text for flag, value in flags.items() for text in (f"--{flag}", str(value))]
        port = self._layout.ports[name]
        checked_port = port if checked_port is None else checked_port

        async def ready(_pid: int) -> bool:
            return await http_status(checked_port, "/healthz", timeout_s=1.0) == 200

        return Service(
            name=name,
            role=role_of(name),
            port=port,
            command=Command(
                [sys.executable, "-m", module, *arguments], self._environment(), CHECKOUT, SERVICE_MEMORY_BYTES
            ),
            ready=ready,
            after=after,
        )

    def _environment(self) -> dict[str, str]:
        """The runner's environment without the stack's own settings: to a service MYQUEUE_PORT means another port."""
        own = {ENV_PREFIX + field.upper() for field in StackConfig.model_fields}
        inherited = {name: value for name, value in os.environ.items() if name not in own}
        return {
            **inherited,
            "MYQUEUE_CLUSTER_SECRET": self._secrets.cluster_secret,
            "MYQUEUE_DATABASE_PASSWORD": self._secrets.database_password,
            # Arrow's own allocators reserve more address space than the memory cap allows.
            "ARROW_DEFAULT_MEMORY_POOL": "system",
            "MALLOC_ARENA_MAX": "2",
            "PYTHONUNBUFFERED": "1",
        }

    def _balancer(self, run: postgres.RunCommand) -> Service:
        ports = self._layout.ports
        write_managers = write_manager_names(self._config)
        reads = [name for name in all_names(self._config) if role_of(name) == "reads"]
        balancer = LoadBalancer(
            program=find_nginx(self._config.use_system),
            folder=self._home.root / "nginx",
            log_folder=self._home.log,
            storage_root=storage_root(self._home, self._layout),
            account=choose_account(),
            port=self._layout.port,
            write_managers=[
                WriteManagerAddress(f"{HOST}:{ports[name]}", f"{HOST}:{ports[internal_of(name)]}")
                for name in write_managers
            ],
            read_managers={name: f"{HOST}:{ports[name]}" for name in reads},
            brokers={
                number: f"{HOST}:{ports[data_of(f'broker-{number}')]}" for number in range(1, self._config.brokers + 1)
            },
            secret=self._secrets.cluster_secret,
            max_client_connections=self._config.max_client_connections,
        )

        async def ready(_pid: int) -> bool:
            return await http_status(self._layout.port, "/internal", timeout_s=1.0) == 404

        async def prepare() -> None:
            balancer.write_configuration()
            await run(balancer.test_command(), b"")

        return Service(
            name=NGINX,
            role="balancer",
            port=self._layout.port,
            command=balancer.command(),
            ready=ready,
            after=(*write_managers, *reads),
            prepare=prepare,
            stop_grace_s=3.0,
        )


async def http_status(port: int, path: str, timeout_s: float) -> int | None:
    """The status of a GET, or None when there is no answer in time."""
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(HOST, port)
            try:
                writer.write(f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n".encode())
                await writer.drain()
                line = await reader.readline()
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
    except (OSError, TimeoutError):
        return None
    parts = line.split()
    return int(parts[1]) if len(parts) >= 2 and parts[0].startswith(b"HTTP/") and parts[1].isdigit() else None
