"""PostgreSQL in containers under faults: its primary, its standbys and etcd go away while consumers are registered."""

import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import requests

from myqueue import Admin
from tests.calls import Calls
from tests.compose.deployment import Container, Deployment
from tests.compose.engine import LOOK_S
from tests.compose.failure import StageFailed
from tests.compose.transcript import Transcript
from tests.waiting import let_pass, until

SERVERS = ("postgres-1", "postgres-2", "postgres-3")
TOPIC = "failover"
PAUSE_S = 0.1
# What is promised is 10 s after a kill and 30 s after a pause; the rest is for a machine that does other things too.
KILLED_S, PAUSED_S = 25.0, 45.0
WITHOUT_ETCD_S, INTERRUPTED_S = 30.0, 15.0  # longer than the 20 s for which etcd's word is good
RETURN_S = 90.0
REFUSING_S = 4.0
# 502 and 504 are nginx's own, while the write managers change.
RETRIABLE = {502, 503, 504}


@dataclass
class Registrations:
    """One client that registers consumers, each once, and remembers what was acknowledged and when."""

    url: str
    stopping: threading.Event = field(default_factory=threading.Event)
    acknowledged: list[str] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def run(self) -> None:
        with requests.Session() as session:
            calls = Calls(self.url, session)
            for number in itertools.count():
                if self.stopping.wait(PAUSE_S):
                    return
                self._register(calls, f"c-{number}")

    def _register(self, calls: Calls, name: str) -> None:
        try:
            answer = calls.register_consumer(TOPIC, name=name)
        except requests.RequestException as failure:
            self.refused[type(failure).__name__] += 1
            return
        if answer.status_code == 201:
            self.times_s.append(time.monotonic())
            self.acknowledged.append(name)
        elif answer.status_code in RETRIABLE:
            self.refused[str(answer.status_code)] += 1
        else:
            self.wrong.append(f"{answer.status_code} {answer.text[:300]}")

    def await_more(self, *, within_s: float, count: int = 10) -> None:
        goal = len(self.acknowledged) + count
        until(lambda: len(self.acknowledged) >= goal, within_s=within_s, what=f"{count} more registrations")

    def await_none(self, *, within_s: float) -> None:
        """Registrations are refused, and have been for a while."""
        until(
            lambda: time.monotonic() - self.times_s[-1] > REFUSING_S,
            within_s=within_s,
            what=f"no registration for {REFUSING_S} s",
        )

    def longest_wait_s(self, since_s: float) -> float:
        """Between two acknowledged ones, the last of them later than that."""
        pairs = itertools.pairwise(self.times_s)
        return max((after - before for before, after in pairs if after > since_s), default=0.0)


@contextmanager
def registering(url: str) -> Iterator[Registrations]:
    """While the block runs; then everything that was acknowledged must be there."""
    with requests.Session() as session:
        Calls(url, session).topic(TOPIC)
    load = Registrations(url)
    thread = threading.Thread(target=load.run)
    thread.start()
    try:
        yield load
    finally:
        load.stopping.set()
        thread.join()
    with Admin(url) as admin:
        there = {consumer.name for consumer in admin.consumers(TOPIC)}
    if lost := [name for name in load.acknowledged if name not in there]:
        raise StageFailed(f"{len(lost)} of {len(load.acknowledged)} acknowledged registrations are lost: {lost[:5]}")
    if load.wrong:
        raise StageFailed(f"registrations got answers that nobody can repeat on: {load.wrong[:5]}")


class Trio:
    """The three servers, as they see themselves."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._engine = deployment.engine

    def primary(self) -> Container | None:
        """None while no server takes writes."""
        for one in self._containers():
            if self._ask(one, "SELECT pg_is_in_recovery()") == "f":
                return one
        return None

    def await_primary(self) -> Container:
        return until(self.primary, within_s=RETURN_S, what="a server is the primary", pause_s=LOOK_S)

    def standbys(self) -> list[Container]:
        primary = self.await_primary()
        return [one for one in self._containers() if one.id != primary.id]

    def await_whole(self) -> None:
        """Both standbys stream, and commits may wait for either."""
        look = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming' AND sync_state = 'quorum'"

        def is_whole() -> bool:
            primary = self.primary()
            return primary is not None and self._ask(primary, look) == "2"

        until(is_whole, within_s=RETURN_S, what="both standbys stream", pause_s=LOOK_S)

    def away(self, *victims: Container) -> None:
        """Killed, and not brought back by the restart policy."""
        self._engine.run("kill", *(one.id for one in victims))

    def back(self, *victims: Container) -> None:
        self._engine.run("start", *(one.id for one in victims))

    def _containers(self) -> list[Container]:
        return [one for one in self._deployment.containers() if one.service in SERVERS]

    def _ask(self, one: Container, statement: str) -> str:
        """Empty without an answer, such as from one that is paused."""
        return self._engine.ask("exec", one.id, "psql", "-XAtc", statement, "postgres", within_s=15).stdout.strip()


def failover(deployment: Deployment, script: Transcript) -> None:
    trio = Trio(deployment)
    with registering(deployment.url) as load:
        load.await_more(within_s=30)
        _kill(deployment, trio, load, script)
        _pause(deployment, trio, load, script)
        _without_etcd(deployment, trio, load, script)
        _without_standbys(deployment, trio, load, script)
    script.say(
        f"  {len(load.acknowledged)} registrations acknowledged, all of them are there; "
        f"{sum(load.refused.values())} refused meanwhile ({dict(load.refused)})"
    )


def _kill(deployment: Deployment, trio: Trio, load: Registrations, script: Transcript) -> None:
    victim = trio.await_primary()
    with script.step(f"kill -9 in {victim.name}, the primary of PostgreSQL") as found:
        since_s = time.monotonic()
        deployment.kill_inside(victim)
        load.await_more(within_s=RETURN_S)
        deployment.await_return(victim, within_s=RETURN_S)
        trio.await_whole()
        found.append(_within(load.longest_wait_s(since_s), KILLED_S))


def _pause(deployment: Deployment, trio: Trio, load: Registrations, script: Transcript) -> None:
    victim = trio.await_primary()
    with script.step(f"pause {victim.name}, the primary of PostgreSQL") as found:
        since_s = time.monotonic()
        deployment.engine.run("pause", victim.id)
        try:
            load.await_more(within_s=RETURN_S)
        finally:
            deployment.engine.run("unpause", victim.id)
        found.append(_within(load.longest_wait_s(since_s), PAUSED_S))
        trio.await_whole()
        successor = trio.await_primary()
        if successor.id == victim.id:
            raise StageFailed(f"{victim.name} is the primary again")
        found.append(f"{successor.name} is the primary, the resumed one its standby")


def _without_etcd(deployment: Deployment, trio: Trio, load: Registrations, script: Transcript) -> None:
    [etcd], victim = deployment.containers("etcd-1"), trio.standbys()[0]
    with script.step(f"etcd away for {WITHOUT_ETCD_S:.0f} s") as found:
        since_s, before = time.monotonic(), len(load.acknowledged)
        trio.away(etcd)
        let_pass(WITHOUT_ETCD_S)
        load.await_more(within_s=INTERRUPTED_S)
        found.append(f"{len(load.acknowledged) - before} registrations meanwhile")
        found.append(_within(load.longest_wait_s(since_s), INTERRUPTED_S))
    with script.step(f"etcd and {victim.name} away") as found:
        trio.away(victim)
        until(lambda: trio.primary() is None, within_s=RETURN_S, what="no server takes writes", pause_s=LOOK_S)
        load.await_none(within_s=RETURN_S)
        _insist_on_reads(deployment.url)
        found.append("registrations are refused, topics can be read")
        trio.back(etcd, victim)
        load.await_more(within_s=RETURN_S)
        trio.await_whole()


def _without_standbys(deployment: Deployment, trio: Trio, load: Registrations, script: Transcript) -> None:
    victims = trio.standbys()
    with script.step("both standbys of PostgreSQL away") as found:
        trio.away(*victims)
        load.await_none(within_s=RETURN_S)
        _insist_on_reads(deployment.url)
        found.append("registrations are refused, topics can be read")
        trio.back(*victims)
        load.await_more(within_s=RETURN_S)
        trio.await_whole()
        deployment.await_well(within_s=RETURN_S)


def _insist_on_reads(url: str) -> None:
    with requests.Session() as session:
        answer = Calls(url, session).get("/topics")
    if answer.status_code != 200:
        raise StageFailed(f"topics cannot be read: {answer.status_code} {answer.text[:300]}")


def _within(seconds: float, limit_s: float) -> str:
    told = f"longest time without a registration: {seconds:.1f} s"
    if seconds > limit_s:
        raise StageFailed(told)
    return told
