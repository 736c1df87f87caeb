"""The supervisor of a stack's services: start in order, restart with backoff, keep stopped ones down, stop in order."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from service.logs import Log
from stack.home import Home, Layout, ProcessRecord, RunnerState
from stack.process import Command, boot_id, kill_group, spawn, start_ticks
from stack.services import STOP_ORDER, Plan, Service

TICK_S = 0.05
DEPENDENCY_TIMEOUT_S = 15.0
PREPARATION_TIMEOUT_S = 60.0
MAX_LOG_BYTES = 64 << 20
LOG_CHECK_S = 30.0
FIRST_BACKOFF_S = 1.0
MAX_BACKOFF_S = 15.0
STABLE_S = 3.0

Condition = Callable[[], bool]


@dataclass(frozen=True)
class Backoff:
    """The delay before a restart doubles with each exit in a row before the service was ready for STABLE_S."""

    early_exits: int = 0

    def after_exit(self, ready_for_s: float) -> "Backoff":
        return Backoff(0) if ready_for_s >= STABLE_S else Backoff(self.early_exits + 1)

    @property
    def delay_s(self) -> float:
        # The exponent is capped: the float would overflow.
        return min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** min(max(0, self.early_exits - 1), 10))


class PreparationFailed(Exception):
    """A command that a service needs before it can start failed; its output is in the runner's log."""


class Supervisor:
    def __init__(self, home: Home, layout: Layout, log: Log) -> None:
        self._home = home
        self._log = log
        self._services = {
            service.name: service for service in Plan(home, layout).services(self._run_command, self._wait_ready)
        }
        self._state = RunnerState(boot_id(), {name: ProcessRecord() for name in self._services})
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._helpers: set[int] = set()
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        self._home.save_state(self._state)
        tasks = {name: asyncio.create_task(self._supervise(service)) for name, service in self._services.items()}
        rotation = asyncio.create_task(self._rotate_logs())
        stopping = asyncio.create_task(self._stopping.wait())
        done, _ = await asyncio.wait([stopping, rotation, *tasks.values()], return_when=asyncio.FIRST_COMPLETED)
        self._stopping.set()
        self._log.info("stopping")
        rotation.cancel()
        for roles in STOP_ORDER:
            names = [name for name, service in self._services.items() if service.role in roles]
            for name in names:
                tasks[name].cancel()
            await asyncio.gather(*(self._end(self._services[name]) for name in names))
        await asyncio.gather(rotation, *tasks.values(), return_exceptions=True)
        for task in done - {stopping}:
            task.result()  # a task ends by itself only through a defect: raise it

    async def _supervise(self, service: Service) -> None:
        """Starts one service again and again until the task is cancelled."""
        await self._wait_for(service.after)
        backoff = Backoff()
        while True:
            if self._kept_down(service):
                self._record(service, state="stopped")
                await self._until(lambda: not self._kept_down(service))
                backoff = Backoff()
            ready_for_s = 0.0
            try:
                self._record(service, state="preparing")
                await service.prepare()
                ready_for_s = await self._run_once(service)
            except (PreparationFailed, OSError) as error:
                self._log.error("could not start", name=service.name, error=str(error))
            if self._kept_down(service):
                continue
            backoff = backoff.after_exit(ready_for_s)
            self._record(service, state="failed", restarts=self._state.processes[service.name].restarts + 1)
            self._log.warning(
                "restarting", name=service.name, delay_s=backoff.delay_s, early_deaths=backoff.early_exits
            )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._until(lambda: self._kept_down(service)), backoff.delay_s)

    async def _run_once(self, service: Service) -> float:
        """Runs it until it exits. Returns how long it was ready."""
        process = spawn(service.command, self._home.log_file(service.name))
        self._processes[service.name] = process
        self._home.pid_file(service.name).write_text(f"{process.pid}\n")
        self._record(service, state="starting", pid=process.pid, start_ticks=start_ticks(process.pid))
        self._log.info("started", name=service.name, pid=process.pid, port=service.port)
        ready_since: float | None = None
        while process.poll() is None:
            if self._kept_down(service):
                await self._end(service)
                break
            if ready_since is None and await service.ready(process.pid):
                ready_since = time.monotonic()
                self._record(service, state="ready")
                self._log.info("ready", name=service.name, pid=process.pid)
            await asyncio.sleep(TICK_S)
        await self._clean_up(service)
        return 0.0 if ready_since is None else time.monotonic() - ready_since

    async def _clean_up(self, service: Service) -> None:
        """Once the main process has exited, end its group and its children outside of the group."""
        process = self._processes.pop(service.name, None)
        if process is None:
            return
        kill_group(process.pid)
        await self._reap_orphans()
        self._home.pid_file(service.name).unlink(missing_ok=True)
        self._record(service, state="ended", pid=None, start_ticks=None)
        self._log.info("ended", name=service.name, pid=process.pid, returncode=process.returncode)

    async def _reap_orphans(self) -> None:
        """Kill the children of an exited service, which the runner has adopted. PostgreSQL's are in sessions of their
        own, so that the group does not cover them: every child that the runner did not start is one of them."""
        me = psutil.Process()
        while True:
            known = {process.pid for process in self._processes.values()} | self._helpers
            orphans = [child for child in me.children() if child.pid not in known]
            if not orphans:
                return
            for orphan in orphans:
                with contextlib.suppress(psutil.NoSuchProcess):
                    orphan.kill()
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(orphan.pid, os.WNOHANG)
            await asyncio.sleep(TICK_S)

    async def _end(self, service: Service) -> None:
        """Stop signal, SIGCONT in case it is paused, and SIGKILL after the grace period."""
        process = self._processes.get(service.name)
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(service.stop_signal)
            process.send_signal(signal.SIGCONT)
            try:
                await asyncio.wait_for(self._until(lambda: process.poll() is not None), service.stop_grace_s)
            except TimeoutError:
                self._log.warning("killing", name=service.name, pid=process.pid, grace_s=service.stop_grace_s)
                process.kill()
                await self._until(lambda: process.poll() is not None)
        await self._clean_up(service)

    async def _run_command(self, command: Command, stdin: bytes) -> None:
        """Run a helper program such as initdb from the main thread, with its output in the runner's log."""
        program = Path(command.argv[0]).name
        process = spawn(command, self._home.log_file("runner"), stdin=subprocess.PIPE)
        self._helpers.add(process.pid)
        try:
            assert process.stdin is not None
            # A few hundred bytes always fit into the pipe.
            with contextlib.suppress(BrokenPipeError), process.stdin:
                process.stdin.write(stdin)
            try:
                await asyncio.wait_for(self._until(lambda: process.poll() is not None), PREPARATION_TIMEOUT_S)
            except TimeoutError:
                raise PreparationFailed(f"{program} took longer than {PREPARATION_TIMEOUT_S:.0f} s") from None
            if process.returncode != 0:
                raise PreparationFailed(f"{program} failed with {process.returncode}; see log/runner.log")
        finally:
            kill_group(process.pid)
            process.wait()
            self._helpers.discard(process.pid)

    async def _until(self, condition: Condition) -> None:
        while not condition():
            await asyncio.sleep(TICK_S)

    async def _wait_ready(self, name: str) -> None:
        """A standby cannot be made without its primary."""
        record = self._state.processes.get(name)
        if record is None:
            raise PreparationFailed(f"{name} is needed first, and it is not one of the services to run")
        try:
            await asyncio.wait_for(self._until(lambda: record.state == "ready"), PREPARATION_TIMEOUT_S)
        except TimeoutError:
            raise PreparationFailed(f"{name} is needed first, and it is not ready") from None

    async def _wait_for(self, names: tuple[str, ...]) -> None:
        """Services start without the others too; the order only avoids failures at start."""
        present = [name for name in names if name in self._services and not self._kept_down(self._services[name])]
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(
                self._until(lambda: all(self._state.processes[name].state == "ready" for name in present)),
                DEPENDENCY_TIMEOUT_S,
            )

    def _kept_down(self, service: Service) -> bool:
        return self._home.stop_mark(service.name).exists()

    def _record(self, service: Service, **changes: object) -> None:
        record = self._state.processes[service.name]
        for name, value in changes.items():
            setattr(record, name, value)
        self._home.save_state(self._state)

    async def _rotate_logs(self) -> None:
        """Writers append, so copying and truncating a log loses at most a line."""
        while True:
            for path in self._home.log.glob("*.log"):
                if path.stat().st_size > MAX_LOG_BYTES:
                    shutil.copyfile(path, path.with_suffix(".log.1"))
                    os.truncate(path, 0)
            await asyncio.sleep(LOG_CHECK_S)
