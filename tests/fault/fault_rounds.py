"""One round: clients at work, a fault of the active write manager or of the PostgreSQL primary, and a judgement."""

import os
import shutil
import signal
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import requests

from stack.config import StackError
from stack.primary_record import read_record
from stack.services import database_folder
from tests import history
from tests.calls import Calls
from tests.cluster import WRITE_MANAGERS, Cluster
from tests.fault.followers import Followers
from tests.integration.postgres_servers import hanging
from tests.waiting import let_pass, until
from tests.workload import Load, running_load

PAUSED_S = 10.0
RESTARTED_S = 60.0  # a start takes 2 s, and 20 on a machine that is very busy
CLIENT_PAUSE_S = 0.01
NEVER_ANSWERED = {"404", "500", "no"}  # statuses; "no": no answer

Strike = Callable[[Cluster, Load], None]


@dataclass(frozen=True)
class Outcome:
    """How long nothing succeeded, by kind of request; and what clients met meanwhile."""

    outages_s: dict[str, float]
    came_again: int
    refusals: dict[str, int]

    def __str__(self) -> str:
        outages = ", ".join(f"no {kind} for {outage_s:.1f} s" for kind, outage_s in self.outages_s.items())
        return f"{outages}; {self.came_again} messages came again; refused: {self.refusals}"


class Bystander:
    """A producer and a consumer that do nothing while the fault lasts."""

    def __init__(self, calls: Calls, topic: str) -> None:
        self._calls, self._topic = calls, calls.topic(topic, partitions=3)
        self._producer, self._consumer = calls.producer(topic), calls.consumer(topic, name="bystander")
        calls.sent(topic, self._producer, "read before")
        calls.sent(topic, self._producer, "read after")
        self._answer = self._consume_once()

    def _consume_once(self) -> object:
        return self._calls.consume(self._topic, self._consumer, {"Idempotency-Key": "before"}).json()

    def assert_unchanged(self) -> None:
        """The same key gets the same message, the cursor is where it was, and no id is given out again."""
        calls, topic = self._calls, self._topic
        again = calls.register_consumer(topic, name="bystander")
        assert (again.status_code, again.json()["consumer_id"]) == (200, self._consumer)
        assert self._consume_once() == self._answer
        assert [message["message"] for message in calls.drained(topic, self._consumer)] == ["read after"]
        assert calls.producer(topic) > self._producer
        assert calls.consumer(topic) > self._consumer


def survive(cluster: Cluster, path: Path, fault: str, strike: Strike) -> Outcome:
    """Fails if anything that was acknowledged is lost, skipped or changed, or a follower does not go on."""
    topic = f"t-{uuid.uuid4().hex[:12]}"
    with ExitStack() as stack:
        calls = Calls(cluster.url, stack.enter_context(requests.Session()))
        calls.topic(topic, partitions=3)
        bystander = Bystander(calls, f"{topic}-bystander")
        load = stack.enter_context(running_load(cluster, topic, path, producers=4, consumers=2, pause_s=CLIENT_PAUSE_S))
        followers = Followers(cluster, topic, load.recorder)
        stack.enter_context(followers.running())
        load.await_progress(within_s=20)
        strike(cluster, load)
        load.await_progress(within_s=30)
        bystander.assert_unchanged()
    events = history.load(path)
    refusals = history.refusals(events)
    kinds = ("produce", "consume", "register")
    outages_s = {kind: max(history.outages_s(events, fault, of=kind)) for kind in kinds}
    outcome = Outcome(outages_s, history.came_again(events), dict(refusals))
    library = followers.library
    print(f"{fault}: {outcome}; the library read {len(library.read)} of {len(library.sent)}")
    print(f"its commits under a lease of before: {library.stale_leases}")
    violations = history.violations(events)
    assert violations == {}, violations
    wrong = [why for why in refusals if why.split()[1] in NEVER_ANSWERED]
    assert wrong == [], wrong
    followers.assert_served()
    return outcome


def strike_write_manager(fault: str) -> Strike:
    """kill, pause (for a while) or term. The other one becomes active, and this one ends up as the standby."""

    def strike(cluster: Cluster, load: Load) -> None:
        name, struck_s = cluster.active_write_manager(), time.monotonic()
        died = cluster.pid(name)
        assert died is not None
        load.recorder.fault(fault, name)
        if fault == "pause":
            cluster.pause(name)
        else:
            os.kill(died, {"kill": signal.SIGKILL, "term": signal.SIGTERM}[fault])
        if fault == "kill":
            cluster.stop(name)  # one that is back before its lease has run out goes on with it
        until(
            lambda: active_one(cluster) not in (None, name),
            within_s=20,
            what=f"the other one is active instead of {name}",
        )
        print(f"{fault} {name}: the other one is active after {time.monotonic() - struck_s:.1f} s")
        load.await_progress(within_s=20)
        if fault == "pause":
            until(lambda: time.monotonic() - struck_s > PAUSED_S, within_s=PAUSED_S)
            cluster.resume(name)
        if fault == "kill":
            cluster.start(name)
        cluster.await_restart(name, died, within_s=RESTARTED_S)
        assert cluster.active_write_manager() != name

    return strike


def pause_briefly(paused_s: float) -> Strike:
    """About as long as a takeover takes: either one may be active afterwards, but only one."""

    def strike(cluster: Cluster, load: Load) -> None:
        name = cluster.active_write_manager()
        load.recorder.fault("pause", name)
        cluster.pause(name)
        let_pass(paused_s)
        cluster.resume(name)
        load.await_progress(within_s=30)
        cluster.await_healthy(within_s=RESTARTED_S)
        print(f"paused {name} for {paused_s} s: {active_one(cluster)} is active")

    return strike


def kill_both(cluster: Cluster, load: Load) -> None:
    """Nobody is left to take over: a restarted one does."""
    died = {name: cluster.pid(name) for name in WRITE_MANAGERS}
    for name, pid in died.items():
        assert pid is not None
        load.recorder.fault("kill", name)
        os.kill(pid, signal.SIGKILL)
    for name, pid in died.items():
        assert pid is not None
        cluster.await_restart(name, pid, within_s=RESTARTED_S)
    until(lambda: active_one(cluster), within_s=20, what="one of them is active")


def active_one(cluster: Cluster) -> str | None:
    try:
        return cluster.local.active_write_manager()
    except StackError:
        return None


def strike_primary(fault: str) -> Strike:
    """kill, pause (until the runner kills it) or erase."""

    def strike(cluster: Cluster, load: Load) -> None:
        name = cluster.local.primary
        died = cluster.pid(name)
        assert died is not None
        with ExitStack() as stack:
            load.recorder.fault(fault, name)
            if fault == "kill":
                os.kill(died, signal.SIGKILL)
            elif fault == "pause":
                stack.enter_context(hanging(cluster.local, name))
            else:
                shutil.rmtree(databases(cluster) / name, ignore_errors=True)
                until(lambda: cluster.local.primary != name, within_s=30, what="a standby is promoted")
            # Consume needs PostgreSQL, produce does not.
            load.await_progress(within_s=40)
            cluster.await_restart(name, died, within_s=RESTARTED_S)
        cluster.await_healthy(within_s=RESTARTED_S)

    return strike


def databases(cluster: Cluster) -> Path:
    layout = cluster.local.home.layout()
    assert layout is not None
    return database_folder(cluster.local.home, layout)


def timeline(cluster: Cluster) -> int:
    record = read_record(databases(cluster))
    assert record is not None
    return record.timeline
