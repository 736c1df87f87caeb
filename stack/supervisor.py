"""The runner: starts services in order, restarts dead ones, keeps stopped ones down, and ends them all in order."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from service.logs import Log
from stack.backoff import Backoff
from stack.home import Home, Layout, ProcessRecord, RunnerState
from stack.plan import Plan
from stack.process import Command, boot_id, kill_group, spawn, start_ticks
from stack.service import STOP_ORDER, Service

TICK_S = 0.05
DEPENDENCY_PATIENCE_S = 15.0
PREPARATION_DEADLINE_S = 60.0
LARGEST_LOG_BYTES = 64 << 20
LOG_CHECK_S = 30.0

Condition = Callable[[], bool]


class PreparationFailed(Exception):
    """A command that a service needs before it can start did not succeed; its output is in the service's log."""


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
        keepers = {name: asyncio.create_task(self._keep(service)) for name, service in self._services.items()}
        caretaker = asyncio.create_task(self._care_for_logs())
        stopping = asyncio.create_task(self._stopping.wait())
        done, _ = await asyncio.wait([stopping, caretaker, *keepers.values()], return_when=asyncio.FIRST_COMPLETED)
        self._stopping.set()
        self._log.info("stopping")
        caretaker.cancel()
        for roles in STOP_ORDER:
            names = [name for name, service in self._services.items() if service.role in roles]
            for name in names:
                keepers[name].cancel()
            await asyncio.gather(*(self._end(self._services[name]) for name in names))
        await asyncio.gather(caretaker, *keepers.values(), return_exceptions=True)
        for task in done - {stopping}:
            task.result()  # a keeper ends by itself only through a defect: say which

    async def _keep(self, service: Service) -> None:
        """The life of one service, until the task is cancelled."""
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
            backoff = backoff.after_death(ready_for_s)
            self._record(service, state="failed", restarts=self._state.processes[service.name].restarts + 1)
            self._log.warning(
                "restarting", name=service.name, delay_s=backoff.delay_s, early_deaths=backoff.early_deaths
            )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._until(lambda: self._kept_down(service)), backoff.delay_s)

    async def _run_once(self, service: Service) -> float:
        """Runs it to its end and tells how long it was ready."""
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
        await self._bury(service)
        return 0.0 if ready_since is None else time.monotonic() - ready_since

    async def _bury(self, service: Service) -> None:
        """After the death of the main process nothing of it may be left: not its group, not children outside it."""
        process = self._processes.pop(service.name, None)
        if process is None:
            return
        kill_group(process.pid)
        await self._reap_orphans()
        self._home.pid_file(service.name).unlink(missing_ok=True)
        self._record(service, state="ended", pid=None, start_ticks=None)
        self._log.info("ended", name=service.name, pid=process.pid, returncode=process.returncode)

    async def _reap_orphans(self) -> None:
        """Children of a dead service come to the runner. PostgreSQL's put themselves into sessions of their own, so
        the group does not name them; whatever hangs under the runner and was not started by it is one of them."""
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
        """Asks, wakes it in case it is paused, and after its time of grace makes it end."""
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
        await self._bury(service)

    async def _run_command(self, command: Command, stdin: bytes) -> None:
        """A helper program such as initdb, from the main thread, with its output in the runner's log."""
        program = Path(command.argv[0]).name
        process = spawn(command, self._home.log_file("runner"), stdin=subprocess.PIPE)
        self._helpers.add(process.pid)
        try:
            assert process.stdin is not None
            # A few hundred bytes always fit into the pipe.
            with contextlib.suppress(BrokenPipeError), process.stdin:
                process.stdin.write(stdin)
            try:
                await asyncio.wait_for(self._until(lambda: process.poll() is not None), PREPARATION_DEADLINE_S)
            except TimeoutError:
                raise PreparationFailed(f"{program} took longer than {PREPARATION_DEADLINE_S:.0f} s") from None
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
            await asyncio.wait_for(self._until(lambda: record.state == "ready"), PREPARATION_DEADLINE_S)
        except TimeoutError:
            raise PreparationFailed(f"{name} is needed first, and it is not ready") from None

    async def _wait_for(self, names: tuple[str, ...]) -> None:
        """Services cope with others that are away; the order only saves them from failing at start."""
        present = [name for name in names if name in self._services and not self._kept_down(self._services[name])]
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(
                self._until(lambda: all(self._state.processes[name].state == "ready" for name in present)),
                DEPENDENCY_PATIENCE_S,
            )

    def _kept_down(self, service: Service) -> bool:
        return self._home.stop_mark(service.name).exists()

    def _record(self, service: Service, **changes: object) -> None:
        record = self._state.processes[service.name]
        for name, value in changes.items():
            setattr(record, name, value)
        self._home.save_state(self._state)

    async def _care_for_logs(self) -> None:
        """Logs are appended to, so a copy and a truncation lose at most a line."""
        while True:
            for path in self._home.log.glob("*.log"):
                if path.stat().st_size > LARGEST_LOG_BYTES:
                    shutil.copyfile(path, path.with_suffix(".log.1"))
                    os.truncate(path, 0)
            await asyncio.sleep(LOG_CHECK_S)
