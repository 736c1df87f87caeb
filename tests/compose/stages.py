"""What is tested of the stack in containers, one stage after another."""

import re
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import requests

from tests import history
from tests.calls import Calls
from tests.cluster import answer_of
from tests.compose.deployment import CHECKOUT, Container, Deployment
from tests.compose.engine import clean_environment
from tests.compose.failure import StageFailed
from tests.compose.published import Published
from tests.compose.traffic import LONG_POLLS, Traffic, light_traffic, seconds_until_answered
from tests.compose.transcript import Transcript
from tests.waiting import until
from tests.workload import Load, Recorder, running_load

SYSTEM_TESTS = (
    *("test_simple_api.py", "test_simple_api_reads.py", "test_library.py", "test_consumers.py"),
    *("test_log_api_reads.py", "test_log_api_writes.py"),
)
SYSTEM_TESTS_S = 400
READ_MANAGERS = (4, 2)  # from two, the number that comes by itself
SHARE = 10  # requests that show that a container takes part
PAUSE_S = 0.05
PARKED_POLLS = 8  # over two read managers: some are at the one that dies
VANISHED_S = 12  # the probes of nginx take 4, the kill itself and a busy machine the rest; without probes it takes 35
KILLS_TOPIC, KILLS_PARTITIONS = "kills", 2
UP_S = 180
RETURN_S = 90
IN_MEMORY = "config/.env.inmem"
_SUMMARY = re.compile(r"^(?:=+ )?(\d+ (?:passed|failed|error|deselected).*) in [0-9.]+s\b", re.MULTILINE)


def now() -> str:
    """As `docker logs --since` takes it."""
    return f"{time.time():.3f}"


def await_port(url: str, *, within_s: float) -> None:
    def is_ready() -> bool:
        answer = answer_of(url + "/readyz")
        return answer is not None and answer.status_code == 200

    until(is_ready, within_s=within_s, what=f"{url}/readyz says 200")


def summary_of(output: str) -> str:
    """The counts in the last line of pytest."""
    found = _SUMMARY.findall(output)
    return found[-1] if found else "no summary"


MAY_COME_AGAIN = 5  # one client's deliveries in the quarter of a second before a read manager is killed


def system_tests(deployment: Deployment, script: Transcript, output: Path, files: tuple[str, ...]) -> None:
    paths = [f"tests/system/{name}" for name in files]
    with script.step(f"system tests against {deployment.url}") as found:
        with output.open("w") as file:
            done = subprocess.run(
                [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", *paths],
                cwd=CHECKOUT,
                env={**clean_environment(), "MYQUEUE_TEST_URL": deployment.url},
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=SYSTEM_TESTS_S,
                check=False,
            )
        text = output.read_text(errors="replace")
        if done.returncode != 0:
            raise StageFailed(f"{summary_of(text)}\n{text[-6000:]}")
        found.append(f"{summary_of(text)} (deselected: they look inside a one-machine stack)")


def scaling(deployment: Deployment, script: Transcript) -> None:
    """Read managers come and go under traffic; every request of every kind succeeds."""
    with light_traffic(deployment.url, "scaling") as traffic:
        traffic.await_progress(within_s=30)
        for count in READ_MANAGERS:
            before = len(deployment.containers("read-manager"))
            with script.step(f"read managers {before} → {count} under traffic") as found:
                deployment.scale("read-manager", count)
                since = now()
                shares = until(
                    lambda since=since, count=count: _shares(deployment, since, count),  # type: ignore[misc]
                    within_s=60,
                    what=f"all {count} read managers answer requests",
                    pause_s=1,
                )
                traffic.await_progress(within_s=60, each=20)
                found.append(", ".join(f"{name} answered {share}" for name, share in shares.items()))
                found.append(_counts(traffic))
                _insist_on_success(traffic)
        if traffic.came_again:
            raise StageFailed(f"consumed twice although every read manager left in peace: {traffic.came_again[:5]}")
        victim = deployment.containers("read-manager")[0]
        with script.step(f"kill -9 in {victim.name} under traffic, with long polls waiting there") as found:
            seconds = seconds_until_answered(
                deployment.url,
                "vanishing",
                PARKED_POLLS,
                lambda: deployment.waiting_polls() >= PARKED_POLLS + LONG_POLLS,
                lambda: deployment.kill_inside(victim),
            )
            if seconds > VANISHED_S:
                raise StageFailed(f"{PARKED_POLLS} long polls were answered {seconds:.1f} s after the kill")
            found.append(f"{PARKED_POLLS} long polls, some of them there, were answered within {seconds:.1f} s")
            back = deployment.await_return(victim, within_s=RETURN_S)
            traffic.await_progress(within_s=60)
            found.append(f"back by its restart policy (restarts: {back.restarts})")
            found.append(_counts(traffic))
            _insist_on_success(traffic)
    if traffic.lost:
        raise StageFailed(
            f"{len(traffic.lost)} messages that the library sent were not read: {sorted(traffic.lost)[:5]}"
        )
    _insist_on_success(traffic)
    script.say(
        f"  {sum(traffic.succeeded.values())} requests, 0 failed: "
        + ", ".join(f"{kind} {count}" for kind, count in sorted(traffic.succeeded.items()))
    )
    script.say(f"  the library sent {len(traffic.sent)} messages and read all of them")
    if len(traffic.came_again) > MAY_COME_AGAIN:
        raise StageFailed(f"{len(traffic.came_again)} messages were consumed twice: {traffic.came_again[:5]}")
    script.say(
        f"  {len(traffic.consumed)} messages consumed without a key: none left out, "
        f"{len(traffic.came_again)} came again after the kill"
    )


def _shares(deployment: Deployment, since: str, count: int) -> dict[str, int] | None:
    shares = deployment.answered_by("read-manager", since)
    return shares if len(shares) == count and min(shares.values()) >= SHARE else None


def _counts(traffic: Traffic) -> str:
    return f"{sum(traffic.succeeded.values())} requests so far, {sum(traffic.failed.values())} failed"


def _insist_on_success(traffic: Traffic) -> None:
    if traffic.failed:
        raise StageFailed(f"requests failed: {dict(traffic.failed)}\n" + "\n".join(traffic.failures))


def kills(deployment: Deployment, script: Transcript, path: Path) -> None:
    """kill -9 under load: each comes back by its restart policy, and nothing acknowledged is lost or doubled."""
    published = Published(deployment.url)
    topic = KILLS_TOPIC
    with requests.Session() as session:
        Calls(deployment.url, session).topic(topic, partitions=KILLS_PARTITIONS)
    with running_load(published, topic, path, producers=2, consumers=1, pause_s=PAUSE_S) as load:
        load.await_progress(within_s=30)
        for choose in (_a_leader(deployment, published, topic), deployment.active_write_manager):
            victim = choose()
            with script.step(f"kill -9 in {victim.name} under load") as found:
                load.recorder.fault("kill", victim.name)
                deployment.kill_inside(victim)
                load.await_progress(within_s=60, produced=20, consumed=5)
                back = deployment.await_return(victim, within_s=RETURN_S)
                load.await_progress(within_s=60)
                found.append(f"back by its restart policy (restarts: {back.restarts})")
        deployment.await_well(within_s=RETURN_S)
    with script.step("check of the history") as found:
        events = history.load(path)
        violations = history.violations(events)
        if violations:
            raise StageFailed(f"the history is not as promised: {violations}")
        found.append(counts_of(events))
        outages = ", ".join(f"{outage:.1f} s" for outage in history.outages_s(events, "kill"))
        found.append(f"longest time without an acknowledged write after each kill: {outages}")


def _a_leader(deployment: Deployment, published: Published, topic: str) -> Callable[[], Container]:
    return lambda: deployment.containers(published.await_leader(topic, 0, within_s=20))[0]


def counts_of(events: history.History) -> str:
    """How much a clean history judged."""

    def count(f: str, kind: str) -> int:
        return sum(event["f"] == f and event["type"] == kind for event in events)

    return (
        f"{count('produce', 'ok')} produced ({count('produce', 'fail')} refused, {count('produce', 'info')} unknown), "
        f"{count('consume', 'ok')} consumed, {count('drain', 'ok')} in the log at the end: nothing lost, nothing twice"
    )


def survival(deployment: Deployment, script: Transcript, path: Path) -> None:
    """Containers are thrown away, volumes stay: what was acknowledged is there, and consumers go on where they were."""
    published = Published(deployment.url)
    before, positions = history.load(path), published.positions(KILLS_TOPIC)
    with script.step("take down without the volumes, up again", deployment.progress):
        deployment.down(volumes=False)
        if deployment.containers():
            raise StageFailed(f"still there: {', '.join(one.name for one in deployment.containers())}")
        deployment.up()
        deployment.await_well(within_s=UP_S)
        await_port(deployment.url, within_s=30)
    with script.step("compare what was acknowledged with what is there") as found:
        again = path.with_name("after-down-and-up.jsonl")
        with closing(Recorder(again)) as recorder:
            Load(deployment.url, KILLS_TOPIC, recorder).drain(published, KILLS_PARTITIONS)
        drained, acknowledged = history.load(again), [event for event in before if event["f"] != "drain"]
        violations = history.violations([*acknowledged, *drained])
        if violations:
            raise StageFailed(f"not as acknowledged before: {violations}")
        if places(drained) != places(before):
            raise StageFailed(f"{len(places(drained) ^ places(before))} messages came or went meanwhile")
        if not positions or published.positions(KILLS_TOPIC) != positions:
            raise StageFailed(f"consumers were at {positions}, now at {published.positions(KILLS_TOPIC)}")
        with requests.Session() as session:
            calls = Calls(deployment.url, session)
            calls.sent(KILLS_TOPIC, calls.producer(KILLS_TOPIC), "one more")
        kept = sum(event["f"] == "produce" and event["type"] == "ok" for event in before)
        found.append(f"{kept} acknowledged, {len(drained)} in the log before and after, each where it was")
        found.append(f"{len(positions)} positions of consumers kept, and it takes messages again")


def places(events: history.History) -> set[tuple[int, int, str]]:
    """What a drain found, and where."""
    return {(event["partition"], event["offset"], event["value"]) for event in events if event["f"] == "drain"}


def in_memory(deployment: Deployment, script: Transcript, output: Path) -> None:
    """The same stack with its messages in memory only."""
    with script.step(f"take down, up again with {IN_MEMORY}", deployment.progress) as found:
        deployment.down()
        deployment.choose(env_file=IN_MEMORY)
        deployment.up()
        brokers = _brokers(deployment.await_well(within_s=UP_S))
        await_port(deployment.url, within_s=30)
        for broker in brokers:
            stored = deployment.engine.run("exec", broker.id, "ls", "-A", "/data").split()
            if stored:
                raise StageFailed(f"{broker.name} has {stored} in its volume, where nothing should be")
        found.append(f"{len(brokers)} brokers, nothing in their volumes")
    system_tests(deployment, script, output, ("test_simple_api.py",))


def _brokers(containers: list[Container]) -> list[Container]:
    return [one for one in containers if one.service.startswith("broker-")]
