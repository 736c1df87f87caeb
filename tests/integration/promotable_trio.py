"""A PostgreSQL trio that nothing supervises: tests promote, pause and re-point its servers themselves."""

import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg2
from pydantic import SecretStr

from db.settings import DatabaseAddress
from stack.account import can_reach, choose_account, make_folder, prepare_shelter
from stack.binaries import find_postgres
from stack.config import CHECKOUT
from stack.local import free_port
from stack.process import Command, kill_group, spawn
from tests.waiting import until

NAMES = ("a", "b", "c")
STREAMING = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"


class PromotableTrio:
    """`a` is the first primary. Everyone on the loopback address may connect as superuser."""

    def __init__(self, folder: Path) -> None:
        self._account = choose_account()
        self._root = folder if can_reach(folder, self._account) else prepare_shelter(folder)
        self._programs = find_postgres(False, self._account, self._root)
        self._log = folder / "postgres.log"
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.ports = {name: free_port() for name in NAMES}
        self.primary = "a"

    def start(self) -> None:
        make_folder(self._data("a"), self._account)
        self._run("initdb", "-D", self._data("a"), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-instructions")
        self._launch("a")
        self.execute("a", "CREATE ROLE myqueue LOGIN")
        self.execute("a", "GRANT pg_read_all_stats TO myqueue")
        self.execute("a", "CREATE DATABASE myqueue OWNER myqueue")
        for name in ("b", "c"):
            self.copy_primary(name)
        until(lambda: self.value("a", STREAMING) == 2, within_s=20, what="both standbys stream")
        self._confirm_commits("a")

    def copy_primary(self, name: str) -> None:
        shutil.rmtree(self._data(name), ignore_errors=True)
        make_folder(self._data(name), self._account)
        port = str(self.ports[self.primary])
        source = ["-h", "127.0.0.1", "-p", port, "-U", "postgres"]
        self._run("pg_basebackup", "-D", self._data(name), *source, "-X", "stream", "-c", "fast", "-R")
        self._launch(name)

    def promote(self, name: str) -> None:
        self.execute(name, "SELECT pg_promote(true, 20)")
        self.primary = name
        self._confirm_commits(name)

    def follow_primary(self, name: str) -> None:
        """Point a standby at the new primary."""
        address = f"host=127.0.0.1 port={self.ports[self.primary]} user=postgres application_name={name}"
        self.execute(name, f"ALTER SYSTEM SET primary_conninfo = '{address}'")
        self.execute(name, "SELECT pg_reload_conf()")

    def stop(self, name: str) -> None:
        process = self._running.pop(name)
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
        kill_group(process.pid)

    @contextmanager
    def paused(self, *names: str) -> Iterator[None]:
        """As on a machine that hangs: connections are accepted, nothing answers."""
        stopped = [
            process
            for name in names
            for server in (psutil.Process(self._running[name].pid),)
            for process in (server, *server.children(recursive=True))
        ]
        for process in stopped:
            process.suspend()
        try:
            yield
        finally:
            for process in stopped:
                with suppress(psutil.NoSuchProcess):
                    process.resume()

    def execute(self, name: str, statement: str) -> list[Any]:
        with closing(
            psycopg2.connect(host="127.0.0.1", port=self.ports[name], user="postgres", dbname="postgres")
        ) as c:
            c.autocommit = True
            cursor = c.cursor()
            cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []

    def value(self, name: str, statement: str) -> Any:
        return self.execute(name, statement)[0][0]

    def address(self, *names: str) -> DatabaseAddress:
        """The servers in this order of preference; all of them without names."""
        hosts = [f"127.0.0.1:{self.ports[name]}" for name in names or NAMES]
        return DatabaseAddress(hosts=hosts, user="myqueue", password=SecretStr(""), name="myqueue")

    def clean(self) -> None:
        for process in self._running.values():
            kill_group(process.pid)
            process.wait(20)
        for name in NAMES:
            shutil.rmtree(self._data(name), ignore_errors=True)
        if self._root != self._log.parent:
            shutil.rmtree(self._root)

    def _data(self, name: str) -> Path:
        return self._root / name

    def _confirm_commits(self, name: str) -> None:
        self.execute(name, "ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (*)'")
        self.execute(name, "SELECT pg_reload_conf()")

    def _command(self, program: str, *arguments: str | Path) -> Command:
        env = {"PATH": "/usr/bin:/bin", "HOME": str(self._root), "LC_ALL": "C.UTF-8", "TZ": "UTC"}
        return Command([self._programs / program, *arguments], env, self._root, 1 << 30, self._account)

    def _run(self, program: str, *arguments: str | Path) -> None:
        code = spawn(self._command(program, *arguments), self._log).wait(60)
        assert code == 0, self._log.read_text(errors="replace")

    def _launch(self, name: str) -> None:
        settings = CHECKOUT / "db" / "postgresql.conf"
        own = {"port": self.ports[name], "listen_addresses": "127.0.0.1", "unix_socket_directories": ""}
        (self._data(name) / "own.conf").write_text(
            settings.read_text() + "".join(f"{key} = '{value}'\n" for key, value in own.items())
        )
        (self._data(name) / "own.conf").chmod(0o644)
        main_file = self._data(name) / "postgresql.conf"
        if "own.conf" not in main_file.read_text():
            main_file.write_text(main_file.read_text() + "\ninclude = 'own.conf'\n")
        self._running[name] = spawn(self._command("postgres", "-D", self._data(name)), self._log)
        until(lambda: self._answers(name), within_s=20, what=f"{name} answers")

    def _answers(self, name: str) -> bool:
        try:
            return bool(self.execute(name, "SELECT 1"))
        except psycopg2.OperationalError:
            return False


@contextmanager
def promotable_trio(folder: Path) -> Iterator[PromotableTrio]:
    trio = PromotableTrio(folder)
    try:
        trio.start()
        yield trio
    finally:
        trio.clean()
