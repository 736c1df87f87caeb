"""The worker processes of an example."""

import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).resolve().parents[1]
STOP_AFTER_ERROR_S = 5.0


class Worker:
    def __init__(self, name: str, module: str, *arguments: str) -> None:
        self.name = name
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

    def start(self, name: str, module: str, *arguments: str) -> Worker:
        worker = Worker(name, module, *arguments)
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
