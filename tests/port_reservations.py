"""No suite chooses a port that another has chosen: a stack binds it later, and while a service is down it is free."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

from stack.ports import LOWEST

FOLDER = "TEST_PORTS_FOLDER"  # set by tests.suites for the suites that it runs side by side


def with_reservations(can_bind: Callable[[int], int], folder: Path) -> Callable[[int], int]:
    """As `stack.ports.can_bind`; what it allows is kept for this process as long as the suites run."""
    own = set[int]()

    def reserve(port: int) -> int:
        problem = can_bind(port)
        if problem or port in own or port < LOWEST:
            return problem
        try:
            os.close(os.open(folder / str(port), os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            return errno.EADDRINUSE
        own.add(port)
        return 0

    return reserve
