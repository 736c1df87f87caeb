"""Kills the broker that leads most of the pipeline's partitions, and watches others take over and it come back.

Only a broker of this checkout's own stack: its supervisor starts the process again.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from examples.invoices.figures import Figures
from myqueue import Admin, MyQueueError, RetryPolicy, Timeouts

LOOK_S = 0.05
GIVE_UP_S = 20.0
_QUICK = RetryPolicy(deadline_s=0.3)
_TIMEOUTS = Timeouts(connect_s=1.0, read_s=2.0)


class LocalBrokers:
    """The processes of a stack on this machine."""

    def __init__(self, pid_file: Callable[[str], Path], ports: dict[str, int]) -> None:
        self._pid_file = pid_file
        self._ports = ports

    def pid(self, broker_id: int) -> int | None:
        try:
            return int(self._pid_file(f"broker-{broker_id}").read_text())
        except (FileNotFoundError, ValueError):
            return None  # between two processes

    def is_ready(self, broker_id: int) -> bool:
        try:
            with urlopen(f"http://127.0.0.1:{self._ports[f'broker-{broker_id}']}/readyz", timeout=1) as answer:
                return bool(answer.status == 200)
        except (OSError, URLError):
            return False


def local_brokers(url: str) -> LocalBrokers | None:
    """None if this is not the running stack of this checkout."""
    try:
        from stack.config import StackError, load_config
        from stack.home import Home
    except ModuleNotFoundError:
        return None
    try:
        home = Home(load_config().home)
    except StackError:
        return None
    layout = home.layout()
    if layout is None or layout.url.rstrip("/") != url or not home.is_locked():
        return None
    return LocalBrokers(home.pid_file, layout.ports)


class Outage:
    """One kill -9 and what follows, in a thread of its own."""

    def __init__(self, url: str, topics: Sequence[str], brokers: LocalBrokers, figures: Figures) -> None:
        self._url = url
        self._topics = topics
        self._brokers = brokers
        self._figures = figures
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="outage", daemon=True)
        self.begun = False

    def begin(self) -> None:
        self.begun = True
        self._thread.start()

    @property
    def over(self) -> bool:
        return self.begun and not self._thread.is_alive()

    def stop(self) -> None:
        """At once, whatever it waits for."""
        self._stopping.set()
        if self.begun:
            self._thread.join(GIVE_UP_S)

    def _run(self) -> None:
        try:
            with Admin(self._url, retry=_QUICK, timeouts=_TIMEOUTS) as admin:
                self._kill_and_watch(admin)
        except (MyQueueError, OSError) as error:
            self._figures.tell(f"the broker could not be killed or watched: {error}", good=False)

    def _kill_and_watch(self, admin: Admin) -> None:
        leaders = self._leaders(admin)
        if leaders is None or not any(leader is not None for leader in leaders):
            self._figures.tell("no broker is killed: the leaders of the partitions are not known", good=False)
            return
        known = [leader for leader in leaders if leader is not None]
        victim = max(sorted(set(known)), key=known.count)
        name, pid = f"broker-{victim}", self._brokers.pid(victim)
        if pid is None:
            self._figures.tell(f"no broker is killed: {name} does not run", good=False)
            return
        os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        led = f"the leader of {known.count(victim)} of {len(leaders)} partitions"
        self._figures.tell(f"{name} killed with kill -9: it was {led}", good=False)

        def moved() -> bool:
            now = self._leaders(admin)
            return now is not None and all(leader not in (None, victim) for leader in now)

        if self._await(moved):
            self._figures.tell(f"other brokers lead them since {time.monotonic() - killed:.1f} s after the kill")

        def back() -> bool:
            return self._brokers.pid(victim) not in (None, pid) and self._brokers.is_ready(victim)

        if self._await(back):
            self._figures.tell(f"{name} is back after {time.monotonic() - killed:.1f} s, started by the supervisor")

    def _leaders(self, admin: Admin) -> list[int | None] | None:
        try:
            return [partition.leader for topic in self._topics for partition in admin.partitions(topic)]
        except MyQueueError:
            return None

    def _await(self, condition: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + GIVE_UP_S
        while not condition():
            if time.monotonic() > deadline or self._stopping.wait(LOOK_S):
                return False
        return True
