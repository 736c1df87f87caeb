"""The commands up, down, stop, start, clean. Each is idempotent and returns when its effect is complete."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import requests

from stack.account import choose_account, choose_shelter, shelter_of
from stack.config import CHECKOUT, ENV_PREFIX, StackConfig, StackError
from stack.guard import end_leftovers
from stack.home import Home, Layout, read_json, write_atomic
from stack.ports import HOST, choose_front_port, choose_inner_ports
from stack.services import NGINX, chosen_names, inner_port_names, internal_urls, primary_of, role_of

UP_DEADLINE_S = 90.0
DOWN_DEADLINE_S = 45.0
SERVICE_DEADLINE_S = 30.0
PROMOTION_DEADLINE_S = 75.0
RUNNER = ("-m", "stack", "run")
SCALABLE = ("read_managers", "brokers")


def up(config: StackConfig) -> str:
    """Start the services that do not run. Returns the URL when all of them answer."""
    home = Home(config.home)
    started_here = False
    with home.command_lock():
        try:
            if not home.is_locked():
                started_here = True
                _start_runner(home, config)
            else:
                _check_same(home, config)
            for mark in home.run.glob("*.stopped"):
                mark.unlink()
            layout = _layout(home)
            _wait_until_up(home, layout)
        except KeyboardInterrupt:
            # An interrupted start must not leave a part of the stack running.
            if started_here:
                _end_runner(home)
            raise
    return layout.url


def _check_same(home: Home, config: StackConfig) -> None:
    """A running stack is not changed: settings that differ from it are refused."""
    layout = _layout(home)
    running = {**layout.stack_config().model_dump(), "port": layout.port}
    asked = config.model_dump(include=config.model_fields_set - {"home"})
    changed = [name for name, value in asked.items() if value != running[name]]
    if changed:
        names = ", ".join(f"{ENV_PREFIX}{name.upper()}" for name in changed)
        way = "use `make scale`" if set(changed) <= set(SCALABLE) else "bring it down first"
        raise StackError(f"this stack runs already at {layout.url}, with another {names}; {way}", exit_code=2)


def _start_runner(home: Home, config: StackConfig) -> None:
    account = choose_account()
    # Other users may traverse but not list it: it contains the unprivileged user's folders.
    home.create(mode=0o700 if account is None else 0o711)
    end_leftovers(home)
    config = _with_known_numbers(home, config)
    names = chosen_names(config)
    remembered = read_json(home.ports_file) or {}
    port = choose_front_port(config.port) if NGINX in names else config.port or 0
    known = home.layout()
    shelter = choose_shelter(home.root, home.data, None if known is None else known.shelter, account)
    ports = {**remembered, **choose_inner_ports(inner_port_names(config), remembered, taken=port)}
    write_atomic(home.ports_file, ports_text(ports))
    url = f"http://{HOST}" if port == 80 else f"http://{HOST}:{port}"
    home.secrets()
    home.save_layout(
        Layout(
            config=config.model_dump(mode="json"),
            url=url,
            port=port,
            ports=ports,
            services=names,
            shelter=None if shelter is None else str(shelter),
        )
    )
    write_atomic(home.url_file, f"{url}\n")
    with home.log_file("runner").open("ab") as output:
        guard = subprocess.Popen(
            [sys.executable, *RUNNER],
            cwd=CHECKOUT,
            env={**os.environ, "MYQUEUE_HOME": str(home.root)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    _wait(lambda: home.is_locked() or guard.poll() is not None, 10.0, "the runner did not start; see log/runner.log")
    if guard.poll() is not None:
        raise StackError(f"the runner did not start:\n{tail(home.log_file('runner'), 20)}")
    # The guard outlives this process on purpose: mark it as waited for.
    guard.returncode = 0


def _with_known_numbers(home: Home, config: StackConfig) -> StackConfig:
    """As many as the last time, unless it is said how many: a broker that was added has messages."""
    layout = home.layout()
    known = {} if layout is None else layout.stack_config().model_dump(include=set(SCALABLE))
    return config.model_copy(update={name: known[name] for name in known if name not in config.model_fields_set})


def ports_text(ports: dict[str, int]) -> str:
    return "{\n" + ",\n".join(f'  "{name}": {port}' for name, port in sorted(ports.items())) + "\n}\n"


def _wait_until_up(home: Home, layout: Layout) -> None:
    deadline = time.monotonic() + UP_DEADLINE_S
    missing = "nothing"
    while time.monotonic() < deadline:
        if not home.is_locked():
            raise StackError(f"the runner ended:\n{tail(home.log_file('runner'), 20)}")
        states = home.state().processes
        waiting = [name for name in layout.services if name not in states or states[name].state != "ready"]
        if waiting:
            missing = ", ".join(waiting)
        elif layout.stack_config().only or _answers(layout.url):  # a part of a stack need not answer as a whole
            return
        else:
            missing = f"{layout.url}/readyz"
        time.sleep(0.1)
    raise StackError(f"not ready after {UP_DEADLINE_S:.0f} s: {missing}; look with `python -m stack status` and `logs`")


def _answers(url: str) -> bool:
    try:
        return requests.get(f"{url}/readyz", timeout=2).status_code == 200
    except requests.RequestException:
        return False


def down(home: Home) -> None:
    if not home.root.exists():
        return
    with home.command_lock():
        _end_runner(home)


def _end_runner(home: Home) -> None:
    if not home.is_locked():
        home.create(mode=home.root.stat().st_mode & 0o777)
        lock = home.try_lock()
        if lock is not None:
            end_leftovers(home)
            os.close(lock)
        return
    pid = home.runner_pid()
    if pid is not None:
        _signal(pid, signal.SIGTERM)
    try:
        _wait(lambda: not home.is_locked(), DOWN_DEADLINE_S, "the stack did not end")
    except StackError:
        if pid is None:
            raise
        # The guard ends everything when its runner is gone.
        _signal(pid, signal.SIGKILL)
        _wait(lambda: not home.is_locked(), 10.0, "the stack did not end even after its runner was killed")


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def clean(home: Home) -> None:
    """Bring the stack down and remove all its files."""
    if home.root.exists():
        down(home)
        shutil.rmtree(home.root)
    if choose_account() is not None and shelter_of(home.root).exists():
        shutil.rmtree(shelter_of(home.root))


def stop(home: Home, name: str) -> None:
    """End a service and keep it down, also over restarts of the runner, until `start` or `up`."""
    _known(home, name)
    home.stop_mark(name).touch()
    _wait(lambda: home.state().processes[name].state == "stopped", SERVICE_DEADLINE_S, f"{name} did not end")


def start(home: Home, name: str) -> None:
    _known(home, name)
    home.stop_mark(name).unlink(missing_ok=True)
    _wait(
        lambda: home.state().processes[name].state == "ready",
        SERVICE_DEADLINE_S,
        f"{name} is not ready after {SERVICE_DEADLINE_S:.0f} s; see its log",
    )


def scale(config: StackConfig) -> None:
    """Let a running stack have another number of read managers, or more brokers. Returns when they are ready."""
    home = Home(config.home)
    with home.command_lock():
        layout = _layout(home)
        pid = home.runner_pid()
        if not home.is_locked() or pid is None:
            raise StackError("the stack is down; run `make up`", exit_code=3)
        _check_release(home)
        before = layout.stack_config()
        asked = config.model_dump(include=config.model_fields_set & set(SCALABLE))
        if not asked:
            raise StackError("say how many: make scale READ_MANAGERS=3 BROKERS=5", exit_code=2)
        if asked.get("brokers", before.brokers) < before.brokers:
            raise StackError(
                f"there are {before.brokers} brokers, and they hold messages: brokers can only be added", exit_code=2
            )
        if before.only:
            raise StackError("a part of a stack is not scaled; bring it down first", exit_code=2)
        after = before.model_copy(update=asked)
        running = set(inner_port_names(before))
        new = [name for name in inner_port_names(after) if name not in running]
        remembered = {name: port for name, port in layout.ports.items() if name in new}
        used = [port for name, port in layout.ports.items() if name not in new]
        ports = {**layout.ports, **choose_inner_ports(new, remembered, taken=layout.port, reserved=used)}
        write_atomic(home.ports_file, ports_text(ports))
        scaled = replace(layout, config=after.model_dump(mode="json"), ports=ports, services=chosen_names(after))
        home.save_layout(scaled)
        _signal(pid, signal.SIGHUP)
        _wait_until_up(home, scaled)
        _wait(lambda: set(home.state().processes) == set(scaled.services), SERVICE_DEADLINE_S, "a service did not end")


def _check_release(home: Home) -> None:
    if not home.state().scales:
        raise StackError("this stack was started by an older release: run `make down` and `make up`", exit_code=2)


def promote(home: Home, name: str, *, anyway: bool) -> None:
    """Make a standby the primary, because a person says so."""
    _known(home, name)
    layout = _layout(home)
    if role_of(name) != "database":
        raise StackError(f"{name} is not a PostgreSQL server", exit_code=2)
    if primary_of(home, layout) == name:
        raise StackError(f"{name} is the primary", exit_code=2)
    _check_release(home)
    with home.command_lock():
        home.promotion_answer.unlink(missing_ok=True)
        write_atomic(home.promotion_request, json.dumps({"name": name, "anyway": anyway}))
        try:
            _wait(home.promotion_answer.exists, PROMOTION_DEADLINE_S, f"{name} was not promoted; see log/runner.log")
        finally:
            home.promotion_request.unlink(missing_ok=True)
    refusal = read_json(home.promotion_answer)["refusal"]
    if refusal is not None:
        raise StackError(f"{name} was not promoted: {refusal}")


def url(home: Home) -> str:
    return _layout(home).url


def access(home: Home) -> dict[str, str | list[str]]:
    """For jobs that run outside of the stack: the write managers' internal addresses and the cluster secret."""
    layout = _layout(home)
    return {
        "url": layout.url,
        "write_manager_urls": internal_urls(layout),
        "cluster_secret": home.secrets().cluster_secret,
    }


def _layout(home: Home) -> Layout:
    layout = home.layout()
    if layout is None:
        raise StackError("there is no stack in this home; run `make up`", exit_code=3)
    return layout


def _known(home: Home, name: str) -> None:
    layout = _layout(home)
    if name not in layout.services:
        raise StackError(
            f"no such service: {name or '(no NAME given)'}; there are {', '.join(layout.services)}", exit_code=2
        )
    if not home.is_locked():
        raise StackError("the stack is down; run `make up`", exit_code=3)


def _wait(condition: Callable[[], bool], within_s: float, problem: str) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            raise StackError(problem)
        time.sleep(0.05)


def tail(path: Path, lines: int) -> str:
    """The last lines of a log without reading all of it."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 400 * lines))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return ""
