"""The three PostgreSQL servers: data folders, settings, command lines."""

import asyncio
import os
import shutil
import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from stack.account import give, make_folder, write_for
from stack.config import CHECKOUT
from stack.home import Secrets
from stack.ports import HOST
from stack.primary_record import DataFolder, PrimaryRecord, derive_record, read_folder, read_record, sync_folder
from stack.process import Account, Command

SETTINGS = CHECKOUT / "db" / "postgresql.conf"
MEMORY_BYTES = 1 << 30
DATABASE = "myqueue"
DATABASE_USER = "myqueue"
ADMIN_USER = "postgres"
REPLICATION_USER = "replicator"
STOP_SIGNAL = signal.SIGINT  # fast shutdown: ends sessions, writes a checkpoint

RunCommand = Callable[[Command, bytes], Awaitable[None]]


def slot_of(name: str) -> str:
    return name.replace("-", "_")


async def _remove(folder: Path) -> None:
    """In a thread: a large one takes longer than the other servers may wait for the event loop."""
    await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


@dataclass(frozen=True)
class Trio:
    """The servers' folders, settings and programs. Which one is the primary, the record beside the data says."""

    folder: Path
    programs: Path
    ports: Mapping[str, int]
    secrets: Secrets
    account: Account | None
    storage_root: Path  # a folder that the account can enter

    def data(self, name: str) -> Path:
        return self.folder / name

    @property
    def names(self) -> list[str]:
        return sorted(self.ports)

    def primary(self) -> str:
        """By the record; before the first start, the first one."""
        record = self.record()
        return self.names[0] if record is None else record.primary

    def record(self) -> PrimaryRecord | None:
        """Of a stack from before there were records, it is derived from the data."""
        return read_record(self.folder) or derive_record({name: self.seen(name) for name in self.names})

    def seen(self, name: str) -> DataFolder:
        return read_folder(self.data(name))

    def command(self, program: str, *arguments: str | Path, password: str | None = None) -> Command:
        env = {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "HOME": str(self.folder),
            "LC_ALL": "C.UTF-8",
            "TZ": "UTC",
        }
        if password is not None:
            env["PGPASSWORD"] = password
        return Command([self.programs / program, *arguments], env, self.storage_root, MEMORY_BYTES, self.account)

    def server_command(self, name: str) -> Command:
        return self.command("postgres", "-D", self.data(name))

    async def initialise(self, name: str, run: RunCommand) -> None:
        """Make an empty database. The folder gets its name when it is complete: one that was cut off is made anew."""
        fresh = await self._fresh(name)
        await self._initialise(fresh, run)
        await self._take_place(fresh, name)

    async def copy_primary(self, name: str, run: RunCommand) -> None:
        """Make it a standby of the primary, which has a slot for it. Its old data stays until the copy is complete."""
        fresh = await self._fresh(name)
        await self._copy_primary(name, fresh, run)
        await self._take_place(fresh, name)

    async def _fresh(self, name: str) -> Path:
        fresh = self.folder / f".{name}.new"
        await _remove(fresh)
        return fresh

    async def _take_place(self, fresh: Path, name: str) -> None:
        await _remove(self.data(name))
        fresh.rename(self.data(name))
        sync_folder(self.folder)

    def write_settings(self, name: str) -> None:
        write_for(self.account, self.data(name) / "myqueue.conf", self.settings(name))

    def has_other_settings(self, name: str) -> bool:
        """Whether it would start with others than the last time."""
        try:
            return (self.data(name) / "myqueue.conf").read_text() != self.settings(name)
        except OSError:  # what is wrong there, the look at the folder says
            return False

    async def move_aside(self, name: str, timeline: int) -> None:
        """Out of the way of its replacement. Durable when this returns."""
        if self.data(name).exists():
            aside = self.folder / f".{name}.timeline-{timeline}"
            await _remove(aside)  # of a promotion that was decided twice
            self.data(name).rename(aside)
        sync_folder(self.folder)

    async def remove_replaced(self, name: str) -> None:
        for aside in self.folder.glob(f".{name}.timeline-*"):
            await _remove(aside)

    async def _initialise(self, fresh: Path, run: RunCommand) -> None:
        make_folder(fresh, self.account)
        password_file = self.folder / ".admin-password"
        write_for(self.account, password_file, self.secrets.admin_password)
        try:
            await run(
                self.command(
                    "initdb", "-D", fresh, "-U", ADMIN_USER, "-A", "scram-sha-256", f"--pwfile={password_file}",
                    "-E", "UTF8", "--locale=C.UTF-8", "--no-instructions",
                ),
                b"",
            )  # fmt: skip
        finally:
            password_file.unlink()
        main_file = fresh / "postgresql.conf"
        with main_file.open("a") as file:
            file.write("\ninclude = 'myqueue.conf'\n")
        write_for(self.account, fresh / "myqueue.conf", self.settings(self.primary()))
        # The first commits must not wait for standbys that do not exist yet. The first error ends it and is logged
        # without the statement, which contains a password.
        single = self.command(
            "postgres", "--single", "-j", "-D", fresh, "-c", "synchronous_standby_names=", "-c", "exit_on_error=on",
            "-c", "log_min_error_statement=panic", "postgres",
        )  # fmt: skip
        await run(single, self._bootstrap_sql().encode())

    def _bootstrap_sql(self) -> str:
        statements = [
            f"CREATE ROLE {DATABASE_USER} LOGIN PASSWORD '{self.secrets.database_password}'",
            f"GRANT pg_read_all_stats TO {DATABASE_USER}",
            f"CREATE ROLE {REPLICATION_USER} LOGIN REPLICATION PASSWORD '{self.secrets.replication_password}'",
            f"GRANT pg_use_reserved_connections TO {REPLICATION_USER}",
            f"CREATE DATABASE {DATABASE} OWNER {DATABASE_USER}",
            *(f"SELECT pg_create_physical_replication_slot('{slot_of(name)}', true)" for name in self.names[1:]),
        ]
        return ";\n\n".join(statements) + ";\n\n"

    async def _copy_primary(self, name: str, fresh: Path, run: RunCommand) -> None:
        make_folder(fresh, self.account)
        command = self.command(
            "pg_basebackup", "-D", fresh, "-h", HOST, "-p", str(self.ports[self.primary()]), "-U", REPLICATION_USER,
            "-X", "stream", "-S", slot_of(name), "-c", "fast", "-w",
            password=self.secrets.replication_password,
        )  # fmt: skip
        # It takes as long as the data is large; a primary that hangs meanwhile is killed, and ends it.
        await run(replace(command, limit_s=None), b"")
        (fresh / "standby.signal").touch(mode=0o600)
        give(fresh / "standby.signal", self.account)

    def settings(self, name: str) -> str:
        """The shared file and this server's own values."""
        standbys = ", ".join(f'"{each}"' for each in self.names)
        values: dict[str, str | int] = {
            "listen_addresses": HOST,
            "port": self.ports[name],
            "unix_socket_directories": "",
            "cluster_name": name,
            "primary_slot_name": slot_of(name),
        }
        if len(self.names) > 1:
            values["synchronous_standby_names"] = f"ANY 1 ({standbys})"
        primary = self.primary()
        if primary != name:
            values["primary_conninfo"] = (
                f"host={HOST} port={self.ports[primary]} user={REPLICATION_USER} "
                f"password={self.secrets.replication_password} application_name={name}"
            )
        return SETTINGS.read_text() + "".join(f"{key} = '{value}'\n" for key, value in values.items())

    def is_ready(self, name: str, pid: int) -> bool:
        """The server writes its own state into the last line of its pid file."""
        try:
            lines = (self.data(name) / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) >= 8 and lines[0].strip() == str(pid) and lines[7].strip() in ("ready", "standby")
