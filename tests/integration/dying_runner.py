"""A runner that kills itself at a point of a promotion: `python -m tests.integration.dying_runner decided`."""

import os
import signal
import sys
from pathlib import Path

from stack import arbiter, guard
from stack.config import load_config
from stack.home import Home
from stack.postgres import Trio
from stack.primary_record import PrimaryRecord, read_record, save_record


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_when(point: str) -> None:
    move = Trio.move_aside

    def save(folder: Path, record: PrimaryRecord) -> None:
        stored = read_record(folder)
        if point == "promoted" and stored is not None and stored.promotion and not record.promotion:
            die()
        save_record(folder, record)
        if point == "decided" and record.promotion:
            die()

    async def move_aside(trio: Trio, name: str, timeline: int) -> None:
        await move(trio, name, timeline)
        if point == "moved":
            die()

    setattr(arbiter, "save_record", save)  # noqa: B010
    setattr(Trio, "move_aside", move_aside)  # noqa: B010


if __name__ == "__main__":
    die_when(sys.argv[1])
    sys.exit(guard.run(Home(load_config().home)))
