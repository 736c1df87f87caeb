"""What happened, step by step, on the screen and in a file: when, how long it took, what was counted."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

PROGRESS_S = 15.0


class Transcript:
    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file = path.open("w")
        self._begin_s = time.monotonic()
        self._lock = threading.Lock()

    def say(self, text: str) -> None:
        line = f"[{time.monotonic() - self._begin_s:6.1f} s] {text}"
        with self._lock:
            print(line, flush=True)
            self._file.write(line + "\n")
            self._file.flush()

    @contextmanager
    def step(self, name: str, progress: Callable[[], str] | None = None) -> Iterator[list[str]]:
        """What the block adds to the list is said at its end, with the time it took; a long step shows progress."""
        self.say(f"{name} ...")
        begin_s = time.monotonic()
        found: list[str] = []
        done = threading.Event()
        watch = threading.Thread(
            target=self._show_progress, args=(progress or (lambda: name), begin_s, done), daemon=True
        )
        watch.start()
        try:
            yield found
        except BaseException as failure:
            self.say(f"{name}: FAILED after {time.monotonic() - begin_s:.1f} s: {reason_of(failure)}")
            raise
        finally:
            done.set()
            watch.join()
        self.say(f"{name}: ok, {time.monotonic() - begin_s:.1f} s{''.join(f'; {text}' for text in found)}")

    def _show_progress(self, progress: Callable[[], str], begin_s: float, done: threading.Event) -> None:
        while not done.wait(PROGRESS_S):
            self.say(f"  still at it after {time.monotonic() - begin_s:.0f} s: {progress()}")

    def close(self) -> None:
        self._file.close()


def reason_of(failure: BaseException) -> str:
    return "interrupted" if isinstance(failure, KeyboardInterrupt) else str(failure) or type(failure).__name__
