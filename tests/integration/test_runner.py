"""The runner keeps its services as it should and leaves nothing behind, shown on PostgreSQL and nginx."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import psycopg2
import pytest

from stack.config import CHECKOUT
from stack.local import LocalStack, free_port
from stack.services import database_folder
from tests.waiting import throughout, until

DATABASES = ["postgres-1", "postgres-2", "postgres-3"]
NOTHING_LEFT_S = 10.0


def processes_of(stack: LocalStack) -> list[psutil.Process]:
    """All that belong to this stack: by their folder, their command line or their environment."""
    layout = stack.home.layout()
    folders = [str(stack.home.root)] + ([layout.shelter] if layout and layout.shelter else [])
    found = []
    for process in psutil.process_iter():
        try:
            words = [process.cwd(), *process.cmdline(), process.environ().get("MYQUEUE_HOME", "")]
            alive = process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            continue
        if alive and process.pid != os.getpid() and any(folder in word for folder in folders for word in words):
            found.append(process)
    return found


def command(stack: LocalStack, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, "MYQUEUE_HOME": str(stack.home.root), **environment}
    return subprocess.run(
        [sys.executable, "-m", "stack", *arguments], cwd=CHECKOUT, env=env, capture_output=True, text=True, timeout=60
    )


def health(stack: LocalStack) -> dict[str, str]:
    return {process.name: process.health for process in stack.status().processes}


def problems(stack: LocalStack) -> dict[str, str | None]:
    return {process.name: process.problem for process in stack.status().processes}


def databases_of(stack: LocalStack) -> Path:
    layout = stack.home.layout()
    assert layout is not None
    return database_folder(stack.home, layout)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    stack = LocalStack(tmp_path_factory.mktemp("runner") / "home", services=[*DATABASES, "nginx"], database_hang_s=0)
    try:
        stack.up()
        yield stack
    finally:
        stack.clean()


@pytest.fixture
def stack(kept: LocalStack) -> LocalStack:
    kept.up()
    until(lambda: set(health(kept).values()) == {"healthy"}, within_s=20)
    return kept


def query(stack: LocalStack, name: str, sql: str) -> list[tuple[object, ...]]:
    database = stack.database()
    connection = psycopg2.connect(
        host="127.0.0.1",
        port=stack.port_of(name),
        user=database.user,
        password=database.password,
        dbname=database.name,
        connect_timeout=5,
    )
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(sql)
            return [] if cursor.description is None else cursor.fetchall()
    finally:
        connection.close()


def test_pids_are_those_whose_death_is_the_service_s_death(stack: LocalStack) -> None:
    for name in DATABASES:
        assert Path(psutil.Process(stack.pid(name)).exe()).name == "postgres"
        assert psutil.Process(stack.pid(name)).ppid() == stack.home.runner_pid()
    assert "master process" in " ".join(psutil.Process(stack.pid("nginx")).cmdline())
    children = [" ".join(each.cmdline()) for each in psutil.Process(stack.pid("nginx")).children()]
    assert sum("worker process" in command for command in children) == 2, children


def test_every_process_has_a_memory_cap(stack: LocalStack) -> None:
    for process in processes_of(stack):
        limits = Path(f"/proc/{process.pid}/limits").read_text()
        found = re.search(r"Max data size +(\d+) +(\d+)", limits)
        assert found is not None, process
        assert int(found[2]) <= 1 << 30


def test_roles_and_synchronous_replication(stack: LocalStack) -> None:
    roles = {process.name: process.role for process in stack.status().processes}
    assert roles == {"nginx": "balancer", "postgres-1": "primary", "postgres-2": "standby", "postgres-3": "standby"}
    rows = query(stack, "postgres-1", "SELECT application_name, sync_state FROM pg_stat_replication ORDER BY 1")
    assert rows == [("postgres-2", "quorum"), ("postgres-3", "quorum")]
    assert query(stack, "postgres-1", "SHOW synchronous_commit") == [("on",)]


def test_up_again_changes_nothing(stack: LocalStack) -> None:
    before = {name: stack.pid(name) for name in [*DATABASES, "nginx"]}
    began = time.monotonic()
    stack.up()
    assert time.monotonic() - began < 2
    assert {name: stack.pid(name) for name in before} == before


@pytest.mark.parametrize("name", ["postgres-1", "postgres-2", "nginx"])
def test_a_killed_service_comes_back(stack: LocalStack, name: str) -> None:
    old = psutil.Process(stack.pid(name))
    family = old.children(recursive=True)
    restarts = {process.name: process.restarts for process in stack.status().processes}[name]
    old.kill()

    def is_noticed() -> bool:
        try:
            return health(stack)[name] != "healthy" or stack.pid(name) != old.pid
        except FileNotFoundError:  # between the old one's file and the new one's
            return True

    until(is_noticed, within_s=5)
    until(lambda: set(health(stack).values()) == {"healthy"}, within_s=15)
    assert stack.pid(name) != old.pid
    assert not any(member.is_running() and member.status() != psutil.STATUS_ZOMBIE for member in family)
    report = {process.name: process for process in stack.status().processes}
    assert report[name].restarts == restarts + 1
    assert report["postgres-1"].role == "primary"


def test_a_record_that_cannot_be_read_does_not_end_the_stack(stack: LocalStack) -> None:
    """Every restart of every service reads which server is the primary."""
    record = databases_of(stack) / "primary.json"
    text, runner = record.read_text(), stack.home.runner_pid()
    record.write_text("{")
    try:
        nginx, standby = stack.pid("nginx"), stack.pid("postgres-2")
        for pid in (nginx, standby):
            os.kill(pid, signal.SIGKILL)
        until(lambda: stack.home.pid_file("nginx").exists() and stack.pid("nginx") != nginx, within_s=10)
        until(lambda: "cannot be read" in (problems(stack)["postgres-2"] or ""), within_s=10)
    finally:
        record.write_text(text)
    until(lambda: set(health(stack).values()) == {"healthy"}, within_s=30)
    assert stack.home.runner_pid() == runner


def test_the_runner_of_an_older_release_gets_no_signal_that_ends_it(stack: LocalStack) -> None:
    state = stack.home.state()
    stack.home.save_state(replace(state, scales=False))
    try:
        answer = command(stack, "scale", MYQUEUE_BROKERS="4")
        assert (answer.returncode, "older release" in answer.stderr) == (2, True), answer.stderr
    finally:
        stack.home.save_state(state)
    assert "a part of a stack" in command(stack, "scale", MYQUEUE_BROKERS="4").stderr


def test_a_paused_service_is_reported_and_left_alone_if_that_is_set(stack: LocalStack) -> None:
    process = psutil.Process(stack.pid("postgres-2"))
    process.suspend()
    try:
        began = time.monotonic()
        answer = command(stack, "status", STATUS_FORMAT="json")
        assert time.monotonic() - began < 20, "it does not wait for the one that hangs"
        assert answer.returncode == 3
        report = {entry["name"]: entry for entry in json.loads(answer.stdout)["processes"]}
        assert report["postgres-2"]["health"] == "unhealthy"
        assert report["postgres-2"]["pid"] == process.pid
        assert report["postgres-1"]["health"] == "healthy"
    finally:
        process.resume()
    until(lambda: health(stack)["postgres-2"] == "healthy", within_s=15)
    assert stack.pid("postgres-2") == process.pid


def test_status_for_machines(stack: LocalStack) -> None:
    answer = command(stack, "status", STATUS_FORMAT="json")
    assert answer.returncode == 0
    report = json.loads(answer.stdout)
    assert set(report) == {"url", "processes"}
    assert report["url"] == stack.url == stack.home.url_file.read_text().strip()
    assert set(report["processes"][0]) == {"name", "role", "pid", "port", "health", "restarts", "problem"}
    assert "postgres-3" in command(stack, "status").stdout


def test_access_for_a_process_beside_the_stack(stack: LocalStack, tmp_path: Path) -> None:
    access = json.loads(command(stack, "access").stdout)
    assert set(access) == {"url", "write_manager_urls", "cluster_secret"}
    assert (access["url"], access["cluster_secret"]) == (stack.url, stack.home.secrets().cluster_secret)
    answer = command(stack, "access", MYQUEUE_HOME=str(tmp_path / "nothing"))
    assert (answer.returncode, answer.stdout) == (3, "")
    assert "make up" in answer.stderr


def test_a_stopped_service_stays_down_until_it_is_started(stack: LocalStack) -> None:
    stack.stop("postgres-3")
    assert not stack.home.pid_file("postgres-3").exists()
    assert health(stack)["postgres-3"] == "stopped"
    query(stack, "postgres-1", "CREATE TABLE IF NOT EXISTS written_meanwhile (x int)")
    stack.stop("postgres-3")  # again is fine
    throughout(lambda: health(stack)["postgres-3"] == "stopped", for_s=2, what="no restart", pause_s=0.25)
    stack.start("postgres-3")
    until(lambda: health(stack)["postgres-3"] == "healthy", within_s=10)
    until(lambda: query(stack, "postgres-3", "SELECT to_regclass('written_meanwhile')::text") != [(None,)], within_s=5)
    assert command(stack, "stop", "broker-77").returncode == 2


def test_a_busy_port_is_refused_and_its_holder_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        other = LocalStack(tmp_path / "home", port, services=["nginx"])
        answer = command(other, "up", MYQUEUE_PORT=str(port), MYQUEUE_SERVICES="nginx")
    assert answer.returncode == 2
    assert re.search(rf"port {port} is busy \(pid {os.getpid()}: ", answer.stderr)
    other.clean()


def test_two_stacks_side_by_side(stack: LocalStack, tmp_path: Path) -> None:
    with LocalStack(tmp_path / "home", services=["nginx"]) as other:
        assert other.url != stack.url
        assert health(other) == {"nginx": "healthy"}
        assert health(stack)["nginx"] == "healthy"
    assert processes_of(other) == []
    assert health(stack)["nginx"] == "healthy"


def test_a_cut_off_copy_of_the_primary_is_made_again(stack: LocalStack) -> None:
    stack.down()
    root = databases_of(stack)
    (root / "postgres-2").rename(root / ".postgres-2.new")
    (root / ".postgres-2.new" / "PG_VERSION").unlink()
    stack.up()
    until(lambda: health(stack)["postgres-2"] == "healthy", within_s=15)
    assert not (root / ".postgres-2.new").exists()


@pytest.mark.parametrize("victim", ["runner", "guard"])
def test_nothing_is_left_when_the_runner_or_its_guard_is_killed(stack: LocalStack, victim: str) -> None:
    query(stack, "postgres-1", f"CREATE TABLE kept_over_{victim} (x int)")
    runner = psutil.Process(stack.home.runner_pid())
    process = runner if victim == "runner" else runner.parent()
    assert process is not None
    assert len(processes_of(stack)) > 10
    process.kill()
    until(lambda: processes_of(stack) == [], within_s=NOTHING_LEFT_S)
    assert command(stack, "status").returncode == 3
    stack.up()
    assert query(stack, "postgres-1", f"SELECT count(*) FROM kept_over_{victim}") == [(0,)]


def test_an_interrupted_up_leaves_nothing_behind(tmp_path: Path) -> None:
    stack = LocalStack(tmp_path / "home", services=DATABASES)
    env = {**os.environ, "MYQUEUE_HOME": str(stack.home.root), "MYQUEUE_SERVICES": ",".join(DATABASES)}
    env["MYQUEUE_PORT"] = str(free_port())
    with subprocess.Popen(
        [sys.executable, "-m", "stack", "up"],
        cwd=CHECKOUT,
        env=env,
        # A shell that runs the tests in the background has it ignored, and that is inherited.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as up:
        until(lambda: stack.home.pid_file("postgres-1").exists(), within_s=20)
        up.send_signal(signal.SIGINT)
        assert up.wait(30) == 130
    assert processes_of(stack) == []
    stack.clean()
    assert not stack.home.root.exists()


def test_clean_removes_everything(tmp_path: Path) -> None:
    stack = LocalStack(tmp_path / "home", services=["postgres-1", "nginx"])
    stack.up()
    layout = stack.home.layout()
    assert layout is not None
    stack.clean()
    stack.clean()
    assert processes_of(stack) == []
    assert not stack.home.root.exists()
    assert layout.shelter is None or not Path(layout.shelter).exists()
