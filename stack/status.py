"""The health of every service: checked in parallel, with a deadline."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, Literal

import psycopg2
import requests

from myqueue.protocol.http_headers import SECRET
from myqueue.protocol.internal import WRITE_MANAGER_STATUS
from stack.home import Home, Layout, ProcessRecord, Secrets
from stack.ports import HOST
from stack.postgres import DATABASE, DATABASE_USER
from stack.process import is_same
from stack.services import NGINX, internal_of, role_of

Health = Literal["healthy", "unhealthy", "stopped", "down"]
TIMEOUT_S = 1.0


@dataclass(frozen=True)
class ProcessReport:
    name: str
    role: str
    pid: int | None
    port: int
    health: Health
    restarts: int
    problem: str | None = None


@dataclass(frozen=True)
class Report:
    url: str | None
    processes: list[ProcessReport]

    @property
    def is_healthy(self) -> bool:
        return bool(self.processes) and all(process.health == "healthy" for process in self.processes)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def read_status(home: Home) -> Report:
    layout = home.layout()
    if layout is None:
        return Report(None, [])
    state = home.state()
    secrets = home.secrets()
    with ThreadPoolExecutor(len(layout.services)) as pool:
        reports = pool.map(
            lambda name: _check(layout, name, state.processes.get(name, ProcessRecord()), secrets), layout.services
        )
        processes = list(reports)
    return Report(layout.url if home.is_locked() else None, processes)


def _check(layout: Layout, name: str, record: ProcessRecord, secrets: Secrets) -> ProcessReport:
    role = role_of(name)
    port = layout.port if name == NGINX else layout.ports[name]
    title: str = role  # or what it is at the moment
    health: Health
    if record.state == "stopped":
        health = "stopped"
    elif not is_same(record.pid, record.start_ticks):
        health = "down"
    elif role == "database":
        title, answers = _check_postgres(port, secrets.database_password)
        health = "healthy" if answers else "unhealthy"
    elif role == "writes":
        title, answers = _check_write_manager(layout.ports[internal_of(name)], secrets.cluster_secret)
        health = "healthy" if answers else "unhealthy"
    else:
        health = "healthy" if _answers(name, port) else "unhealthy"
    pid = record.pid if health in ("healthy", "unhealthy") else None
    return ProcessReport(name, title, pid, port, health, record.restarts, record.problem)


def _answers(name: str, port: int) -> bool:
    # nginx itself refuses internal paths: this answer does not depend on the managers.
    path, expected = ("/internal", 404) if name == NGINX else ("/readyz", 200)
    try:
        return requests.get(f"http://{HOST}:{port}{path}", timeout=TIMEOUT_S).status_code == expected
    except requests.RequestException:
        return False


def _check_write_manager(internal_port: int, secret: str) -> tuple[str, bool]:
    """Its current role, and whether it is healthy: a standby is while it answers."""
    url = f"http://{HOST}:{internal_port}"
    try:
        status = requests.get(url + WRITE_MANAGER_STATUS.path, headers={SECRET: secret}, timeout=TIMEOUT_S)
        if status.status_code == 200 and not status.json()["active"]:
            return "standby", True
        return "writes", requests.get(url + "/readyz", timeout=TIMEOUT_S).status_code == 200
    except (requests.RequestException, ValueError, KeyError):
        return "writes", False


def _check_postgres(port: int, password: str) -> tuple[str, bool]:
    """Its current role, and whether it is healthy: a standby is while it streams."""
    try:
        connection = psycopg2.connect(
            host=HOST,
            port=port,
            user=DATABASE_USER,
            password=password,
            dbname=DATABASE,
            connect_timeout=2,  # libpq takes nothing shorter
            options="-c statement_timeout=1000",
            application_name="status",
        )
    except psycopg2.OperationalError:
        return "database", False
    try:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_is_in_recovery(), EXISTS (SELECT FROM pg_stat_wal_receiver WHERE status = 'streaming')"
            )
            row = cursor.fetchone()
            assert row is not None
            return ("standby", bool(row[1])) if row[0] else ("primary", True)
    except psycopg2.Error:
        return "database", False
    finally:
        connection.close()
