"""The generators and filters of one run, as processes of their own."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).resolve().parents[2]
STOP_WITHIN_S = 40.0  # longer than a filter tries to send its last invoice


@dataclass(frozen=True, slots=True)
class Worker:
    name: str
    process: subprocess.Popen[str]

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def stop(self) -> None:
        """Asks; a filter finishes the invoice that it has in hand."""
        if self.running:
            self.process.terminate()

    def last_words(self) -> str:
        """What it printed, once it has ended."""
        output, _ = self.process.communicate(timeout=STOP_WITHIN_S)
        return output.strip()


class Workers:
    """Ends all of them with the block, whatever happens in it."""

    def __init__(self) -> None:
        self._all: list[Worker] = []

    def start(self, module: str, name: str, *arguments: str) -> Worker:
        command = [sys.executable, "-m", f"examples.invoices.{module}", "--name", name, *arguments]
        # A session of its own: Ctrl-C reaches only the parent, which then ends its workers in order.
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        worker = Worker(name, process)
        self._all.append(worker)
        return worker

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._all:
            worker.stop()
        for worker in self._all:
            try:
                worker.process.communicate(timeout=5 if kind else STOP_WITHIN_S)
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.communicate()
