"""The producers and consumers of a run, as processes of their own."""

import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).resolve().parents[2]
END_WITHIN_S = 5.0


class Worker:
    def __init__(self, name: str, arguments: list[str]) -> None:
        self.name = name
        self._lines: list[str] = []
        # A session of its own: Ctrl-C reaches only the parent, which then ends its workers in order.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "examples.scenarios", *arguments],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
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

    def ask_to_end(self) -> None:
        if self.running:
            self._process.terminate()

    def wait(self, within_s: float) -> bool:
        """Whether it has ended by then."""
        try:
            self._process.wait(max(0.0, within_s))
        except subprocess.TimeoutExpired:
            return False
        self._listener.join()
        return True

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._listener.join()

    def has_said(self, words: str) -> bool:
        return any(words in line for line in self._lines)

    def words(self) -> str:
        return "\n".join(self._lines)


class LineCount:
    """Of a file that grows, or is not there yet; each byte is read once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._lines = 0

    def now(self) -> int:
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                data = file.read()
        except FileNotFoundError:
            return 0
        self._read += len(data)
        self._lines += data.count(b"\n")
        return self._lines


class Workers:
    """Ends all of them with the block, whatever happens in it."""

    def __init__(self) -> None:
        self._all: list[Worker] = []

    def start(self, name: str, *arguments: str) -> Worker:
        worker = Worker(name, list(arguments))
        self._all.append(worker)
        return worker

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._all:
            worker.ask_to_end()
        for worker in self._all:
            if not worker.wait(END_WITHIN_S):
                worker.kill()
