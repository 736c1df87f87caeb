"""The supervisor of a stack's services: start in order, restart with backoff, keep stopped ones down, stop in order."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path

import psutil

from service.logs import Log
from stack.arbiter import Arbiter
from stack.config import StackError
from stack.home import Home, Layout, ProcessRecord, RunnerState
from stack.process import Command, PreparationFailed, boot_id, kill_group, spawn, start_ticks
from stack.services import STOP_ORDER, Plan, Service, role_of, trio_of

TICK_S = 0.05
DEPENDENCY_TIMEOUT_S = 15.0
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


class Supervisor:
    def __init__(self, home: Home, layout: Layout, log: Log) -> None:
        self._home = home
        self._layout = layout
        self._log = log
        self._state = RunnerState(boot_id(), {name: ProcessRecord() for name in layout.services}, scales=True)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._helpers: set[int] = set()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stopping = asyncio.Event()
        self._scaling = asyncio.Event()
        self._databases = [name for name in layout.services if role_of(name) == "database"]
        self._arbiter: Arbiter | None = None
        if self._databases:
            hang_s = layout.stack_config().database_hang_s
            self._arbiter = Arbiter(home, trio_of(home, layout), self, self._run_command, log, hang_s=hang_s)
        self._services = self._plan(layout)

    def _plan(self, layout: Layout) -> dict[str, Service]:
        return {service.name: service for service in Plan(self._home, layout).services(self._run_command)}

    def _planned(self, name: str) -> Service:
        """The primary may be another one than when the runner started, and with it the order of its clients' hosts.

        What cannot be read at the moment does not keep a service down: it starts as the last time.
        """
        try:
            self._services[name] = self._plan(self._layout)[name]
        except (StackError, OSError, ValueError) as error:
            self._log.error("could not plan", name=name, error=str(error))
        return self._services[name]

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        loop.add_signal_handler(signal.SIGHUP, self._scaling.set)
        self._home.save_state(self._state)
        for name in self._services:
            self._start(name, self._supervise(name))
        self._start("rotation", self._rotate_logs())
        self._start("scaling", self._scale())
        if self._arbiter is not None:
            self._start("requests", self._arbiter.take_requests())
            self._start("lag", self._arbiter.notice_lag())
            for name in self._databases:
                self._start(f"{name}.watch", self._arbiter.watch(name))
        await self._stopping.wait()
        self._log.info("stopping")
        for name in self._tasks.keys() - self._services.keys():
            self._tasks[name].cancel()
        for roles in STOP_ORDER:
            names = [name for name, service in self._services.items() if service.role in roles]
            for name in names:
                self._tasks[name].cancel()
            await asyncio.gather(*(self._end(self._services[name]) for name in names))
        for result in await asyncio.gather(*self._tasks.values(), return_exceptions=True):
            if isinstance(result, Exception):
                raise result  # a task ends by itself only through a defect

    def _start(self, name: str, work: Coroutine[None, None, None]) -> None:
        self._tasks[name] = asyncio.create_task(work)
        self._tasks[name].add_done_callback(lambda task: None if task.cancelled() else self._stopping.set())

    async def _scale(self) -> None:
        """Follows the layout: services that are new in it start, those that are no longer in it end."""
        while True:
            await self._scaling.wait()
            self._scaling.clear()
            try:
                layout = self._home.layout()
                assert layout is not None
                services = self._plan(layout)
            except (StackError, OSError, ValueError) as error:
                self._log.error("could not scale", error=str(error))
                continue
            self._layout = layout
            before, self._services = self._services, services
            for name in self._services.keys() - before.keys():
                self._state.processes[name] = ProcessRecord()
                self._start(name, self._supervise(name))
            removed = before.keys() - self._services.keys()
            for name in removed:
                self._tasks.pop(name).cancel()
            await asyncio.gather(*(self._end(before[name]) for name in removed))
            for name in removed:
                del self._state.processes[name]
            self._save_state()
            self._log.info("scaled", services=len(self._services))

    async def _supervise(self, name: str) -> None:
        """Starts one service again and again until the task is cancelled."""
        await self._wait_for(self._services[name].after)
        backoff = Backoff()
        while True:
            service = self._planned(name)
            if self._stays_down(name):
                self._record(service, state="stopped")
                await self._until(lambda: not self._stays_down(name))
                backoff = Backoff()
                continue
            ready_for_s = 0.0
            try:
                self._record(service, state="preparing")
                await self._prepare(service)
                if not self._kept_down(name):
                    ready_for_s = await self._run_once(service)
            except (PreparationFailed, StackError, OSError) as error:
                self._log.error("could not start", name=name, error=str(error))
                self._record(service, problem=str(error))
            if self._stays_down(name):
                continue
            backoff = backoff.after_exit(ready_for_s)
            self._record(service, state="failed", restarts=self._state.processes[name].restarts + 1)
            if service.role == "database" and backoff.early_exits <= 1:
                self._log.warning("restarting", name=name, delay_s=0.0, early_deaths=backoff.early_exits)
                continue
            self._log.warning("restarting", name=name, delay_s=backoff.delay_s, early_deaths=backoff.early_exits)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(
                    self._until(lambda: self._stays_down(name) or self._is_requested(name)), backoff.delay_s
                )

    def _is_requested(self, name: str) -> bool:
        return self._arbiter is not None and self._arbiter.is_requested(name)

    def _stays_down(self, name: str) -> bool:
        return self._kept_down(name) and not (self._arbiter is not None and self._arbiter.is_replaced(name))

    async def _prepare(self, service: Service) -> None:
        if self._arbiter is not None and service.role == "database":
            await self._arbiter.prepare(service.name)
        else:
            await service.prepare()

    async def _run_once(self, service: Service) -> float:
        """Runs it until it exits. Returns how long it was ready."""
        if self._arbiter is not None and service.role == "database":
            self._arbiter.starting(service.name)
        process = spawn(service.command, self._home.log_file(service.name))
        self._processes[service.name] = process
        with contextlib.suppress(OSError):  # a full disk must not leave a server without its supervisor
            self._home.pid_file(service.name).write_text(f"{process.pid}\n")
        self._record(service, state="starting", pid=process.pid, start_ticks=start_ticks(process.pid))
        self._log.info("started", name=service.name, pid=process.pid, port=service.port)
        ready_since: float | None = None
        while process.poll() is None:
            if self._kept_down(service.name):
                await self._end(service)
                break
            if ready_since is None and await service.ready(process.pid):
                ready_since = time.monotonic()
                self._record(service, state="ready", problem=None)
                self._log.info("ready", name=service.name, pid=process.pid)
            await asyncio.sleep(TICK_S)
        await self._clean_up(service, process)
        if self._arbiter is not None and service.role == "database":
            self._arbiter.ended(service.name, was_ready=ready_since is not None)
        return 0.0 if ready_since is None else time.monotonic() - ready_since

    # The processes of the trio, for the arbiter.

    def is_running(self, name: str, *, ready: bool = False) -> bool:
        process = self._processes.get(name)
        is_alive = process is not None and process.poll() is None
        return is_alive and (not ready or self._state.processes[name].state == "ready")

    def is_stopped(self, name: str) -> bool:
        return name not in self._services or self._kept_down(name)

    def kill(self, name: str) -> None:
        self._processes[name].kill()

    def reload(self, name: str) -> None:
        if name in self._processes:
            self._processes[name].send_signal(signal.SIGHUP)

    async def end(self, name: str) -> None:
        await self._end(self._services[name])

    def report(self, name: str, problem: str) -> None:
        self._record(self._services[name], problem=problem)

    async def _clean_up(self, service: Service, process: "subprocess.Popen[bytes]") -> None:
        """Once the main process has exited, end its group and its children outside of the group.

        Both who runs it and who ends it come here, and both wait: what the first one then starts is not the second
        one's to forget.
        """
        if self._processes.get(service.name) is not process:
            return
        kill_group(process.pid)
        await self._reap_orphans()
        if self._processes.get(service.name) is not process:
            return
        del self._processes[service.name]
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
        await self._clean_up(service, process)

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
                await asyncio.wait_for(self._until(lambda: process.poll() is not None), command.limit_s)
            except TimeoutError:
                raise PreparationFailed(f"{program} took longer than {command.limit_s} s") from None
            if process.returncode != 0:
                raise PreparationFailed(f"{program} failed with {process.returncode}; see log/runner.log")
        finally:
            kill_group(process.pid)
            process.wait()
            self._helpers.discard(process.pid)

    async def _until(self, condition: Condition) -> None:
        while not condition():
            await asyncio.sleep(TICK_S)

    async def _wait_for(self, names: tuple[str, ...]) -> None:
        """Services start without the others too; the order only avoids failures at start."""
        present = [name for name in names if name in self._services and not self._kept_down(name)]
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(
                self._until(lambda: all(self._state.processes[name].state == "ready" for name in present)),
                DEPENDENCY_TIMEOUT_S,
            )

    def _kept_down(self, name: str) -> bool:
        return self._home.stop_mark(name).exists()

    def _record(self, service: Service, **changes: object) -> None:
        record = self._state.processes[service.name]
        for name, value in changes.items():
            setattr(record, name, value)
        self._save_state()

    def _save_state(self) -> None:
        with contextlib.suppress(OSError):  # a full disk: it is saved with the next change
            self._home.save_state(self._state)

    async def _rotate_logs(self) -> None:
        """Writers append, so copying and truncating a log loses at most a line."""
        while True:
            for path in self._home.log.glob("*.log"):
                try:
                    if path.stat().st_size > MAX_LOG_BYTES:
                        shutil.copyfile(path, path.with_suffix(".log.1"))
                        os.truncate(path, 0)
                except OSError as error:
                    self._log.error("could not rotate", path=str(path), error=str(error))
            await asyncio.sleep(LOG_CHECK_S)
