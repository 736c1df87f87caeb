"""Three real brokers: what is acknowledged survives the loss of any one of them, and all of them hold the same."""

import threading
import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from broker.storage.entry import Entry
from tests.integration.broker_trio import IDS, Trio
from tests.stored_files import flip_bit, partition_file_with
from tests.waiting import until

partition_ids = count()

# No election timeout is shorter: the quickest of several handovers shows whether they wait for one.
HANDED_OVER_S = 1.0

# The same faults hit a whole stack in tests/fault, which `make test` runs: here they serve work on the broker alone.
IN_THE_FAULT_SUITE = pytest.mark.slow


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trio]:
    trio = Trio(tmp_path_factory.mktemp("trio"))
    try:
        yield trio.start()
    finally:
        trio.close()


@pytest.fixture
def partition(trio: Trio) -> int:
    """A new one for each test, led by the first broker."""
    partition_id = next(partition_ids)
    trio.create(partition_id)
    trio.move_leader(partition_id, IDS[0])
    return partition_id


class Load:
    """Appends numbered messages, each under its key until it is acknowledged."""

    def __init__(self, trio: Trio, partition: int) -> None:
        self._trio = trio
        self._partition = partition
        self._stop = threading.Event()
        self.offsets: list[int] = []
        self.gaps_s: list[float] = []  # before each of them
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(20)

    def _run(self) -> None:
        last_s = time.monotonic()
        while not self._stop.is_set():
            value = b"%d" % len(self.offsets)
            self.offsets.append(self._trio.append([value], [value.decode()], self._partition))
            now_s = time.monotonic()
            self.gaps_s.append(now_s - last_s)
            last_s = now_s

    def await_more(self, number: int = 30) -> None:
        enough = len(self.offsets) + number
        until(lambda: len(self.offsets) >= enough, within_s=15, what="more appends are acknowledged")

    def check(self, stored: list[bytes]) -> None:
        assert len(stored) == len(set(stored)), "a retry was written twice"
        for number, offset in enumerate(self.offsets):
            assert stored[offset] == b"%d" % number


def test_every_replica_holds_the_same_bytes(trio: Trio, partition: int) -> None:
    trio.append([b"a" * 1000, b"b"], ["k0", "k1"], partition)
    for number in range(20):
        trio.append([b"%d" % number], [f"n{number}"], partition)
    assert trio.brokers[1].append([b"b", b"c"], ["k1", "k2"], partition).json()["results"] == [
        {"offset": 1, "duplicate": True},
        {"offset": 22},
    ]
    assert len(trio.await_same(partition)) == 23
    first, second, third = (trio.entries(n, partition) for n in IDS)
    assert first == second == third
    assert [entry.base_offset for entry, _ in first if entry.count] == [0, *range(2, 23)]


def test_only_the_leader_appends_and_says_where_it_ends(trio: Trio, partition: int) -> None:
    trio.append([b"a"], ["k"], partition)
    assert [trio.brokers[n].offsets(partition) is not None for n in IDS] == [True, False, False]
    answer = trio.brokers[2].append([b"b"], ["k2"], partition)
    assert (answer.status_code, answer.json()["outcome"]) == (421, "not_written")
    assert answer.json()["details"] == {"leader": 1}
    report = until(lambda: _configured(trio.report(1, partition)), within_s=5, what="the leader's report")
    assert report["configuration"]["voters"] == [trio.member(n) for n in IDS]
    for n, role in zip(IDS, ("leader", "follower", "follower"), strict=True):
        until(lambda: (trio.report(n, partition) or {}).get("role") == role, within_s=5, what=role)  # noqa: B023


def _configured(report: dict[str, Any] | None) -> dict[str, Any] | None:
    return report if report is not None and report["configuration"] is not None else None


def test_leadership_moves_on_request(trio: Trio, partition: int) -> None:
    with Load(trio, partition) as load:
        load.await_more()
        gaps_s = []
        for broker_id in (3, 2, 1):
            before = len(load.gaps_s)
            trio.move_leader(partition, broker_id)
            load.await_more()
            gaps_s.append(max(load.gaps_s[before:]))
    load.check(trio.await_same(partition))
    assert min(gaps_s) < HANDED_OVER_S, gaps_s


@IN_THE_FAULT_SUITE
@pytest.mark.timeout(180)
def test_nothing_acknowledged_is_lost_when_leaders_are_killed(trio: Trio, partition: int) -> None:
    with Load(trio, partition) as load:
        for _ in range(3):
            load.await_more()
            leader = trio.leader(partition)
            trio.brokers[leader].kill()
            load.await_more()
            trio.brokers[leader].start()
        load.await_more()
    load.check(trio.await_same(partition))
    assert max(load.gaps_s) < 5.0
    first, second, third = (trio.entries(n, partition) for n in IDS)
    assert first == second == third


@IN_THE_FAULT_SUITE
def test_all_are_killed_at_once(trio: Trio, partition: int) -> None:
    offsets = [trio.append([b"%d" % n], [f"{n}"], partition) for n in range(20)]
    for broker in trio.brokers.values():
        broker.kill()
    trio.start_all()
    stored = trio.await_same(partition)
    assert [stored[offset] for offset in offsets] == [b"%d" % n for n in range(20)]


@IN_THE_FAULT_SUITE
def test_a_stopped_leader_is_replaced_and_answers_no_end(trio: Trio, partition: int) -> None:
    trio.append([b"before"], ["k0"], partition)
    leader = trio.leader(partition)
    old = trio.brokers[leader]
    old.pause()
    try:
        others = {n: b for n, b in trio.brokers.items() if n != leader}
        assert until(
            lambda: next((n for n, b in others.items() if b.offsets(partition)), None), within_s=5, what="a new leader"
        )
    finally:
        old.resume()
    # What it had in its buffers it must not answer as a leader.
    answer = old.append([b"stale"], ["k1"], partition)
    assert answer.status_code in (421, 503), answer.text
    assert old.offsets(partition) is None
    trio.append([b"after"], ["k2"], partition)
    assert b"stale" not in trio.await_same(partition)


def test_the_minority_refuses_in_time(trio: Trio, partition: int) -> None:
    trio.append([b"a"], ["k0"], partition)
    for n in (2, 3):
        trio.brokers[n].kill()
    try:
        for _ in range(3):
            started_s = time.monotonic()
            answer = trio.brokers[1].append([b"b"], ["k1"], partition)
            assert answer.status_code == 503
            assert answer.json()["retriable"]
            assert time.monotonic() - started_s < 4.0
        assert answer.json()["outcome"] == "not_written"
        assert trio.brokers[1].offsets(partition) is None
        assert trio.brokers[1].read_all(partition) == [b"a"]
    finally:
        for n in (2, 3):
            trio.brokers[n].start(wait=False)
        for n in (2, 3):
            trio.brokers[n].await_answer()
    trio.append([b"b"], ["k1"], partition)
    assert trio.await_same(partition) == [b"a", b"b"]


def test_sigterm_hands_leadership_over_first(trio: Trio, partition: int) -> None:
    with Load(trio, partition) as load:
        load.await_more()
        gaps_s = []
        for _ in range(3):
            before = len(load.gaps_s)
            leader = trio.leader(partition)
            assert trio.brokers[leader].stop() == 0
            trio.brokers[leader].start()
            load.await_more()
            gaps_s.append(max(load.gaps_s[before:]))
    load.check(trio.await_same(partition))
    assert min(gaps_s) < HANDED_OVER_S, gaps_s


@IN_THE_FAULT_SUITE
def test_an_erased_broker_is_rebuilt_under_another_name(trio: Trio, partition: int) -> None:
    for number in range(20):
        trio.append([b"%d" % number], [f"{number}"], partition)
    before = trio.member(2)
    trio.brokers[2].kill()
    trio.erase(2)
    trio.brokers[2].start()
    until(lambda: trio.member(2) != before, within_s=5, what="it registered anew")
    founders = [before if n == 2 else trio.member(n) for n in IDS]
    assert trio.brokers[2].create(partition, founders).status_code == 201
    assert trio.brokers[2].append([b"x"], ["x"], partition).status_code in (421, 503)
    trio.reconcile(partition)
    assert trio.await_same(partition) == [b"%d" % n for n in range(20)]
    # It counts now: with it and one other there is a majority.
    trio.brokers[3].kill()
    trio.append([b"more"], ["more"], partition)
    trio.brokers[3].start()
    assert len(trio.await_same(partition)) == 21


def test_a_flipped_bit_is_fetched_again(trio: Trio, partition: int) -> None:
    trio.append([b"A" * 5000], ["k0"], partition)
    for number in range(5):
        trio.append([b"%d" % number], [f"{number}"], partition)
    stored = trio.await_same(partition)
    broker = trio.brokers[3]
    name = until(lambda: trio.report(3, partition), within_s=5, what="broker 3 reports its replica")["incarnation"]
    for _ in range(2):  # at the second start the journal does not hold it any more
        assert broker.stop() == 0
        broker.start()
    assert broker.stop() == 0
    flip_bit(partition_file_with(broker.folder, b"A" * 100), b"A" * 100, at=50)
    broker.start()
    assert broker.fetch(0, partition_id=partition).status_code in (204, 503), "never served"

    def damaged() -> bool:
        assert broker.fetch(0, partition_id=partition).status_code in (204, 503), "never served"
        return (trio.report(3, partition) or {}).get("damaged") is not None

    until(damaged, within_s=5, what="it is reported as damaged")
    trio.reconcile(partition)
    assert (trio.report(3, partition) or {})["incarnation"] != name
    assert trio.await_same(partition) == stored
    until(lambda: not list((broker.folder / "aside").glob("*")), within_s=5, what="what was kept aside is removed")


def test_retention_cuts_all_replicas_alike(trio: Trio) -> None:
    partition_id = next(partition_ids)
    trio.create(partition_id, retention_bytes=20_000)
    trio.leader(partition_id)
    for number in range(30):
        trio.append([b"%d" % number + b"x" * 2000], [f"{number}"], partition_id)

    def start() -> int | None:
        answers = [trio.brokers[n].fetch(0, partition_id=partition_id) for n in IDS]
        first, second, third = (trio.entries(n, partition_id) for n in IDS)
        if {answer.status_code for answer in answers} != {410} or not first == second == third:
            return None
        starts: set[int] = {answer.json()["details"]["beginning_offset"] for answer in answers}
        return starts.pop() if len(starts) == 1 and min(starts) > 15 else None

    first = until(start, within_s=10, what="all replicas start at the same entry")
    assert first < 25
    assert trio.brokers[3].fetch(first, partition_id=partition_id).status_code == 200
    # The keys of what was cut are still known.
    again = trio.brokers[trio.leader(partition_id)].append([b"0" + b"x" * 2000], ["0"], partition_id)
    assert again.json()["results"] == [{"offset": 0, "duplicate": True}]


def test_a_follower_behind_the_start_goes_on_from_the_snapshot(trio: Trio) -> None:
    partition_id = next(partition_ids)
    trio.create(partition_id, retention_bytes=10_000)
    trio.append([b"first"], ["first"], partition_id)
    trio.await_same(partition_id)
    leader = trio.leader(partition_id)
    late = next(n for n in IDS if n != leader)
    trio.brokers[late].kill()
    for number in range(20):
        trio.append([b"%d" % number + b"x" * 2000], [f"{number}"], partition_id)

    def start(broker_id: int) -> int:
        answer = trio.brokers[broker_id].fetch(0, partition_id=partition_id)
        return int(answer.json()["details"]["beginning_offset"]) if answer.status_code == 410 else 0

    until(lambda: start(leader) > 10, within_s=10, what="the log is cut")
    trio.brokers[late].start()
    until(lambda: start(late) == start(leader), within_s=10, what="the late one starts where the others do")

    def entries(broker_id: int) -> list[Entry]:
        return [entry for entry, _ in trio.entries(broker_id, partition_id)]  # its chain of checksums starts anew

    until(lambda: entries(late) == entries(leader), within_s=10, what="the late one holds the same entries")
    # It knows the keys of messages that it never had.
    trio.move_leader(partition_id, late)
    assert trio.append([b"3" + b"x" * 2000], ["3"], partition_id) == 4
