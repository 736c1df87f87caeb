"""Brokers that cannot reach each other: the side without a majority refuses at once, the other one goes on."""

import itertools
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import requests

from tests import history
from tests.fault.links import LinkedTrio
from tests.integration.broker_process import TOPIC_ID
from tests.integration.broker_trio import IDS
from tests.replicas import differences, stored_log
from tests.waiting import until
from tests.workload import Recorder

pytestmark = pytest.mark.timeout(120)

CONVERGED_S = 15.0
REFUSED_S = 4.0
LONGEST_OUTAGE_S = 10.0
PAUSE_S = 0.01


@pytest.fixture(scope="module")
def whole_trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LinkedTrio]:
    trio = LinkedTrio(tmp_path_factory.mktemp("trio"))
    try:
        yield trio.start()
    finally:
        trio.close()


@pytest.fixture
def trio(whole_trio: LinkedTrio) -> Iterator[LinkedTrio]:
    """With a new partition, and all links up in the end."""
    whole_trio.next_partition()
    yield whole_trio
    whole_trio.heal()


class Writers:
    """Clients that go from broker to broker until one takes their message, always under the same key."""

    def __init__(self, trio: LinkedTrio, recorder: Recorder) -> None:
        self.trio = trio
        self.recorder = recorder
        self.acknowledged = 0
        self._stopping = threading.Event()

    def run(self, process: str) -> None:
        first = 1
        for sequence in itertools.count():
            value = f"{process}-{sequence}"
            while True:
                if self._stopping.wait(PAUSE_S):
                    return
                first = self._try(process, sequence, value, first)
                if first > 0:
                    break
                first = -first

    def _try(self, process: str, sequence: int, value: str, broker_id: int) -> int:
        """The broker to ask next; negative when this one has not taken it."""

        def note(kind: str, **more: object) -> None:
            self.recorder.write("produce", kind, process, value, sequence=sequence, **more)

        note("invoke")
        try:
            answer = self.trio.brokers[broker_id].append([value.encode()], [value], self.trio.partition_id)
        except requests.RequestException:
            note("info")
            return -(broker_id % len(IDS) + 1)
        if answer.status_code == 200:
            offset = answer.json()["results"][0]["offset"]
            note("ok", partition=self.trio.partition_id, offset=offset)
            self.acknowledged += 1
            return broker_id
        assert answer.status_code in (421, 503), answer.text
        note("fail" if answer.json()["outcome"] == "not_written" else "info")
        return -int(answer.json().get("details", {}).get("leader", broker_id % len(IDS) + 1))

    def await_progress(self, more: int, *, within_s: float) -> None:
        goal = self.acknowledged + more
        until(lambda: self.acknowledged >= goal, within_s=within_s, what=f"{more} more writes are acknowledged")

    def stop(self) -> None:
        self._stopping.set()


@contextmanager
def writing(trio: LinkedTrio, path: Path) -> Iterator[Writers]:
    """Writers while the block runs; then everything is read from every broker and judged."""
    with closing(Recorder(path)) as recorder:
        writers = Writers(trio, recorder)
        with ThreadPoolExecutor(3) as pool:
            running = [pool.submit(writers.run, f"p{number}") for number in range(3)]
            try:
                writers.await_progress(50, within_s=10)
                yield writers
            finally:
                writers.stop()
        for writer in running:
            writer.result()
        end_offset = await_converged(trio)
        for broker_id, broker in trio.brokers.items():
            for offset, value in enumerate(broker.read_all(trio.partition_id)[:end_offset]):
                place = {"partition": trio.partition_id, "offset": offset}
                recorder.write("drain", "ok", f"broker {broker_id}", value.decode(), **place)
    assert history.violations(history.load(path)) == {}
    logs = [stored_log(broker.folder, TOPIC_ID, trio.partition_id) for broker in trio.brokers.values()]
    assert differences(logs, end_offset) == []


def await_converged(trio: LinkedTrio) -> int:
    """All replicas hand out the same messages; how many."""
    started_s = time.monotonic()
    end_offset = until(lambda: end_of(trio), within_s=CONVERGED_S, what="a leader answers where the log ends")

    def caught_up() -> bool:
        return all(
            broker.fetch(end_offset - 1, 1, trio.partition_id).status_code == 200 for broker in trio.brokers.values()
        )

    left_s = started_s + CONVERGED_S - time.monotonic()
    until(caught_up, within_s=left_s, what=f"all brokers have {end_offset} messages")
    return end_offset


def end_of(trio: LinkedTrio) -> int | None:
    """As the leader answers."""
    found = (told_end(trio, broker_id) for broker_id in IDS)
    return next((end_offset for end_offset in found if end_offset is not None), None)


def told_end(trio: LinkedTrio, broker_id: int) -> int | None:
    asked = {"partitions": [{"topic_id": str(TOPIC_ID), "partition_id": trio.partition_id}], "timestamp": None}
    broker = trio.brokers[broker_id]
    (end,) = broker.http.post(broker.url + "/internal/offsets", json=asked, timeout=5).json()["offsets"]
    return None if end is None else int(end["end_offset"])


def assert_refuses(trio: LinkedTrio, broker_id: int) -> None:
    """Refuses appends and the end of the log; still serves reads of what it has."""
    started_s = time.monotonic()
    answer = trio.brokers[broker_id].append([b"refused"], [], trio.partition_id)
    assert time.monotonic() - started_s < REFUSED_S
    assert answer.status_code == 503, answer.text
    assert answer.json()["retriable"]
    assert told_end(trio, broker_id) is None
    assert trio.brokers[broker_id].fetch(0, 1, trio.partition_id).status_code == 200


def leader_among(trio: LinkedTrio, brokers: list[int], within_s: float) -> int:
    def look() -> int | None:
        found = trio.leader(trio.partition_id, within_s=within_s)
        return found if found in brokers else None

    return until(look, within_s=within_s, what=f"one of {brokers} leads")


def test_leader_cut_off(trio: LinkedTrio, tmp_path: Path) -> None:
    with writing(trio, tmp_path / "history.jsonl") as writers:
        leader = trio.leader(trio.partition_id)
        rest = [n for n in IDS if n != leader]
        trio.cut_off(leader)
        writers.recorder.fault("cut", f"broker {leader}")
        assert_refuses_or_was_overtaken(trio, leader)
        leader_among(trio, rest, within_s=LONGEST_OUTAGE_S)
        writers.await_progress(100, within_s=10)
        assert_refuses(trio, leader)
        trio.heal()
        healed_s = time.monotonic()
        await_converged(trio)
        assert time.monotonic() - healed_s <= CONVERGED_S
        writers.await_progress(50, within_s=10)
    outages_s = history.outages_s(history.load(tmp_path / "history.jsonl"), "cut")
    print(f"write outage after the cut: {outages_s[0]:.2f} s")
    assert outages_s[0] <= LONGEST_OUTAGE_S


def assert_refuses_or_was_overtaken(trio: LinkedTrio, broker_id: int) -> None:
    """Right after the cut it may still believe that it leads: no follower confirms, so the outcome is unknown."""
    started_s = time.monotonic()
    answer = trio.brokers[broker_id].append([b"unknown"], [], trio.partition_id)
    assert time.monotonic() - started_s < REFUSED_S
    assert answer.status_code in (421, 503), answer.text


@pytest.mark.slow
def test_follower_cut_off(trio: LinkedTrio, tmp_path: Path) -> None:
    """Nobody notices, and it does not disturb the others when it comes back."""
    with writing(trio, tmp_path / "history.jsonl") as writers:
        leader = trio.leader(trio.partition_id)
        term = _term(trio, leader)
        follower = next(n for n in IDS if n != leader)
        trio.cut_off(follower)
        writers.recorder.fault("cut", f"broker {follower}")
        writers.await_progress(100, within_s=10)
        until(lambda: _refuses(trio, follower), within_s=5, what="the follower has noticed")
        trio.heal()
        await_converged(trio)
        assert trio.leader(trio.partition_id) == leader
        assert _term(trio, leader) == term


def _refuses(trio: LinkedTrio, broker_id: int) -> bool:
    return trio.brokers[broker_id].append([b"refused"], [], trio.partition_id).status_code == 503


def _term(trio: LinkedTrio, broker_id: int) -> int:
    report = trio.report(broker_id, trio.partition_id)
    assert report is not None
    return int(report["term"])


@pytest.mark.parametrize("direction", ["from the leader", "to the leader"])
def test_one_way_cut(trio: LinkedTrio, tmp_path: Path, direction: str) -> None:
    """The leader's frames are lost in one direction: another broker takes over in either case."""
    with writing(trio, tmp_path / "history.jsonl") as writers:
        leader = trio.leader(trio.partition_id)
        rest = [n for n in IDS if n != leader]
        for n in rest:
            trio.cut_one_way(*((leader, n) if direction == "from the leader" else (n, leader)))
        writers.recorder.fault("cut", f"broker {leader}")
        leader_among(trio, rest, within_s=LONGEST_OUTAGE_S)
        writers.await_progress(100, within_s=10)
        trio.heal()
        await_converged(trio)
        writers.await_progress(50, within_s=10)
    assert history.outages_s(history.load(tmp_path / "history.jsonl"), "cut")[0] <= LONGEST_OUTAGE_S


@pytest.mark.slow
def test_bridge(trio: LinkedTrio, tmp_path: Path) -> None:
    """The link between the leader and one follower is cut, those to the third are not: the log goes on."""
    with writing(trio, tmp_path / "history.jsonl") as writers:
        leader = trio.leader(trio.partition_id)
        other = next(n for n in IDS if n != leader)
        trio.doors.shut((leader, other), (other, leader))
        writers.recorder.fault("cut", f"broker {leader}")
        writers.await_progress(200, within_s=15)
        trio.heal()
    assert history.outages_s(history.load(tmp_path / "history.jsonl"), "cut")[0] <= LONGEST_OUTAGE_S


@pytest.mark.slow
def test_flapping_links(trio: LinkedTrio, tmp_path: Path) -> None:
    """The leader comes and goes faster than an election takes; progress is slow, but nothing is lost."""
    with writing(trio, tmp_path / "history.jsonl") as writers:
        for round_ in range(12):
            victim = trio.leader(trio.partition_id, within_s=8) if round_ % 4 == 0 else round_ % len(IDS) + 1
            trio.cut_off(victim)
            flapped_s = time.monotonic() + 0.1 * (1 + round_ % 4)
            until(lambda until_s=flapped_s: time.monotonic() >= until_s, within_s=1, what="the link is down a moment")  # type: ignore[misc]
            trio.heal()
        writers.await_progress(50, within_s=10)
