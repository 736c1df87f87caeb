"""The worker processes of an example, and how they report their progress to the parent."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[1]
STOP_AFTER_ERROR_S = 5.0
REPORT_INTERVAL_S = 0.1

OnReport = Callable[[str, dict[str, Any]], None]  # the worker's name, and what it reports


class ProgressReport:
    """In a worker: prints figures as lines of JSON, a few a second."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._last_s = 0.0

    def show(self, *, now: bool = False, **figures: object) -> None:
        now_s = time.monotonic()
        if self._enabled and (now or now_s - self._last_s >= REPORT_INTERVAL_S):
            self._last_s = now_s
            print(json.dumps(figures), flush=True)


class Worker:
    def __init__(self, name: str, module: str, *arguments: str, on_report: OnReport | None = None) -> None:
        """`on_report` gets the lines of a ProgressReport, in a thread of its own; others are output."""
        self.name = name
        self._on_report = on_report
        self._lines: list[str] = []
        # A session of its own: Ctrl-C reaches only the parent, which then stops its workers in order.
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._output_reader = threading.Thread(target=self._read_output, daemon=True)
        self._output_reader.start()

    def _read_output(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                if self._on_report is not None and line.startswith("{"):
                    self._on_report(self.name, json.loads(line))
                else:
                    self._lines.append(line.rstrip())

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def returncode(self) -> int | None:
        return self._process.poll()

    def terminate(self) -> None:
        if self.running:
            self._process.terminate()

    def wait(self, timeout_s: float) -> bool:
        """Whether it has ended by then."""
        try:
            self._process.wait(max(0.0, timeout_s))
        except subprocess.TimeoutExpired:
            return False
        self._output_reader.join()
        return True

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._output_reader.join()

    def has_printed(self, text: str) -> bool:
        return any(text in line for line in self._lines)

    def output(self) -> str:
        return "\n".join(self._lines).strip()


class Workers:
    """Stops all of them at the end of the block, also after an error."""

    def __init__(self, stop_timeout_s: float) -> None:
        self._stop_timeout_s = stop_timeout_s
        self._all: list[Worker] = []

    def start(self, name: str, module: str, *arguments: str, on_report: OnReport | None = None) -> Worker:
        worker = Worker(name, module, *arguments, on_report=on_report)
        self._all.append(worker)
        return worker

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._all:
            worker.terminate()
        for worker in self._all:
            if not worker.wait(self._stop_timeout_s if kind is None else STOP_AFTER_ERROR_S):
                worker.kill()
