"""Machines on one switch, each a network namespace: what happens when one vanishes without a word can be seen there.

Threads enter a namespace one by one; sockets stay in the one they were made in. Needs root and `ip`.
"""

import ctypes
import os
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

CLONE_NEWNET = 0x40000000
NETWORK = "10.213.77"


class NoNamespaces(Exception):
    """Network namespaces cannot be made here; the message says why."""


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=20)


class Machine:
    def __init__(self, namespace: str, switch: str, number: int) -> None:
        self.namespace = namespace
        self.address = f"{NETWORK}.{number}"
        self._switch = switch
        self._port = f"p{number}"

    def plug_in(self) -> None:
        _ip("-n", self._switch, "link", "add", self._port, "type", "veth", "peer", "eth0", "netns", self.namespace)
        _ip("-n", self._switch, "link", "set", self._port, "master", "br0", "up")
        _ip("-n", self.namespace, "addr", "add", f"{self.address}/24", "dev", "eth0")
        for link in ("lo", "eth0"):
            _ip("-n", self.namespace, "link", "set", link, "up")

    def vanish(self) -> None:
        """As a container does that is removed: nothing answers at its address, and nothing was closed."""
        _ip("-n", self._switch, "link", "del", self._port)

    def set_kernel(self, settings: dict[str, str]) -> None:
        for name, value in settings.items():
            self.run(partial(Path("/proc/sys", *name.split(".")).write_text, value))

    def command(self, *argv: str) -> list[str]:
        return ["ip", "netns", "exec", self.namespace, *argv]

    def run(self, act: Callable[[], T]) -> T:
        """On a thread of its own, which is in this namespace, and so are those that it starts."""

        def inside() -> T:
            with Path("/var/run/netns", self.namespace).open() as file:
                libc = ctypes.CDLL(None, use_errno=True)
                if libc.setns(file.fileno(), CLONE_NEWNET) != 0:
                    raise NoNamespaces(f"setns: {os.strerror(ctypes.get_errno())}")
            return act()

        with ThreadPoolExecutor(1) as pool:
            return pool.submit(inside).result()


@contextmanager
def machines(count: int) -> Iterator[list[Machine]]:
    """That many on one switch. Raises NoNamespaces where that is not permitted."""
    prefix = f"myqueue-{os.getpid()}"
    switch, *names = [f"{prefix}-{number}" for number in range(count + 1)]
    made: list[str] = []
    try:
        try:
            for name in (switch, *names):
                _ip("netns", "add", name)
                made.append(name)
            _ip("-n", switch, "link", "add", "br0", "type", "bridge")
            _ip("-n", switch, "link", "set", "br0", "up")
            plugged = [Machine(name, switch, number) for number, name in enumerate(names, start=1)]
            for machine in plugged:
                machine.plug_in()
        except FileNotFoundError as error:
            raise NoNamespaces("there is no program `ip`") from error
        except subprocess.CalledProcessError as error:
            raise NoNamespaces(f"{' '.join(error.cmd)}: {error.stderr.strip()}") from error
        yield plugged
    finally:
        for name in made:
            _ip("netns", "del", name)
