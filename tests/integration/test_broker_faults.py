"""A broker that is killed, whose files are damaged, whose disk is full or fails."""

import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
import requests

from tests import required
from tests.integration.broker_process import BrokerProcess
from tests.stored_files import flip_bit, flip_frame, partition_file_with
from tests.waiting import until

NOBODY = "http://127.0.0.1:9"  # no write manager there: the broker works without one


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(tmp_path / "data", NOBODY, broker_id=1)
    broker.start()
    yield broker
    broker.close()


class Appender:
    """Sends numbered messages with keys and retries each under its key until it is acknowledged."""

    def __init__(self, broker: BrokerProcess, name: int, stop: threading.Event) -> None:
        self._broker = broker
        self._name = name
        self._stop = stop
        self.acknowledged: dict[int, bytes] = {}
        self.unknown: bytes | None = None  # was sent, no answer yet

    def run(self) -> None:
        number = 0
        while not self._stop.is_set():
            value = b"%d-%d" % (self._name, number)
            self.unknown = value
            try:
                answer = self._broker.append([value], [value.decode()], partition_id=self._name % 2)
            except requests.RequestException:
                self._stop.wait(0.05)
                continue
            if answer.status_code == 200:
                self.acknowledged[answer.json()["results"][0]["offset"]] = value
                self.unknown = None
                number += 1
            else:
                assert answer.status_code in (503, 507), answer.text
                self._stop.wait(0.05)


@pytest.mark.timeout(180)
def test_nothing_acknowledged_is_lost_by_kill_9(broker: BrokerProcess) -> None:
    for partition_id in (0, 1):
        broker.create(partition_id)
    stop = threading.Event()
    appenders = [Appender(broker, name, stop) for name in range(6)]
    with ThreadPoolExecutor(len(appenders)) as pool:
        running = [pool.submit(appender.run) for appender in appenders]
        try:
            for _ in range(2):
                before = sum(len(appender.acknowledged) for appender in appenders)
                enough = before + 200
                until(
                    lambda: sum(len(appender.acknowledged) for appender in appenders) > enough,  # noqa: B023
                    within_s=20,
                    what="appends are acknowledged",
                )
                broker.kill()
                broker.start()
            for partition_id in (0, 1):
                broker.await_lead(partition_id)
        finally:
            stop.set()
        for future in running:
            future.result(20)
    for partition_id in (0, 1):
        mine = appenders[partition_id::2]
        stored = broker.read_all(partition_id)
        assert len(stored) == len(set(stored)), "a retry under the same key was written twice"
        for appender in mine:
            for offset, value in appender.acknowledged.items():
                assert stored[offset] == value
        sent = {value for appender in mine for value in appender.acknowledged.values()}
        assert set(stored) - sent <= {appender.unknown for appender in mine}


def start_twice(broker: BrokerProcess) -> None:
    """Afterwards what was stored before is in the partitions' files only: the journal begins anew at each start."""
    for _ in range(2):
        assert broker.stop() == 0
        broker.start()
        for partition_id in (0, 1):
            broker.await_lead(partition_id)


def test_a_flipped_bit_is_never_served(broker: BrokerProcess) -> None:
    broker.create(0)
    broker.create(1)
    broker.append([b"A" * 5000])
    for _ in range(3):
        broker.append([b"B" * 100])
    broker.append([b"fine"], partition_id=1)
    start_twice(broker)
    assert broker.stop() == 0
    path = partition_file_with(broker.folder, b"A" * 100)
    flip_bit(path, b"A" * 100, at=50)
    for stored in (4, 5):
        broker.start()
        broker.await_lead(0)
        broker.await_lead(1)
        answer = broker.fetch(0)
        assert (answer.status_code, "damaged" in answer.json()["message"]) == (503, True)
        assert [broker.fetch(offset).status_code for offset in (1, 2, 3)] == [200, 200, 200]
        assert broker.append([b"more"]).json()["results"] == [{"offset": stored}]
        assert broker.read_all(1) == [b"fine"]
        assert broker.stop() == 0
    assert b"B" * 100 in path.read_bytes()


def test_a_damaged_journal_is_read_only_and_nothing_is_deleted(broker: BrokerProcess) -> None:
    broker.create(0)
    broker.create(1)
    broker.append([b"fine"], partition_id=1)
    start_twice(broker)
    incarnation = broker.incarnation()
    for letter in (b"A", b"B", b"C"):
        broker.append([letter * 100])
    broker.kill()
    flip_frame(broker.folder, b"A" * 100)
    broker.start()
    assert broker.incarnation() != incarnation
    assert broker.read_all(1) == [b"fine"]
    answer = broker.append([b"more"], partition_id=1)
    assert (answer.status_code, answer.json()["outcome"]) == (503, "not_written")
    assert partition_file_with(broker.folder, b"fine").exists()


def await_end(broker: BrokerProcess, size: int) -> int:
    """Appends until the process ends; how many were acknowledged."""
    acknowledged = 0
    with suppress(requests.RequestException):
        while broker.append([b"%d" % acknowledged + b"x" * size]).status_code == 200:
            acknowledged += 1
    assert broker.exit_status(10) == 70
    return acknowledged


def check_stored(broker: BrokerProcess, acknowledged: int) -> None:
    broker.start()
    broker.await_lead()
    stored = broker.read_all()
    assert acknowledged <= len(stored) <= acknowledged + 1
    assert [int(value.partition(b"x")[0]) for value in stored] == list(range(len(stored)))


def test_a_write_error_of_the_journal_stops_the_process(broker: BrokerProcess) -> None:
    broker.create()
    broker.limit_file_size(256 << 10)
    check_stored(broker, await_end(broker, 10_000))


def test_a_write_error_of_a_partition_file_stops_the_process(tmp_path: Path) -> None:
    """The journal's segments are as long as the limit allows, the partition's file wants to be longer."""
    segments = ("--journal-segment-bytes", str(20 << 20))
    broker = BrokerProcess(tmp_path / "data", NOBODY, *segments, broker_id=1)
    broker.start(file_size_bytes=20 << 20)
    try:
        broker.create()
        acknowledged = await_end(broker, 500_000)
        assert (acknowledged + 1) * 500_000 > 20 << 20, "the last one may have been stored and not acknowledged"
        check_stored(broker, acknowledged)
    finally:
        broker.close()


def test_below_the_reserve_appends_are_refused(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", NOBODY, broker_id=1)
    try:
        broker.start()
        broker.create()
        broker.append([b"a"])
        broker.stop()
        low = BrokerProcess(tmp_path / "data", NOBODY, "--disk-reserve-bytes", str(1 << 60), broker_id=1)
        try:
            low.start()
            low.await_lead()
            answer = low.append([b"b"])
            assert (answer.status_code, answer.json()["outcome"]) == (507, "not_written")
            assert low.read_all() == [b"a"]
            assert "almost full" in requests.get(low.url + "/readyz", timeout=5).json()["checks"]["storage"]
        finally:
            low.close()
    finally:
        broker.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=160m", "tmpfs", disk], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        required.skip("may not mount a small disk")
    yield disk
    subprocess.run(["umount", disk], check=True)


def test_a_full_disk_refuses_writes_keeps_reads_and_recovers(small_disk: Path) -> None:
    settings = ("--disk-reserve-bytes", str(8 << 20), "--journal-segment-bytes", str(20 << 20))
    broker = BrokerProcess(small_disk / "data", NOBODY, *settings, broker_id=1)
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(48 << 20))
    try:
        broker.start()
        broker.create()
        stored = 0
        while (answer := broker.append([b"x" * 500_000])).status_code == 200:
            stored += 1
            assert stored < 100
        assert (answer.status_code, answer.json()["outcome"]) == (507, "not_written")
        assert len(broker.read_all()) == stored
        ballast.unlink()
        assert broker.append([b"y"]).status_code == 200
        # Somebody else takes everything that is left, the reserve too.
        with suppress(OSError), ballast.open("wb", buffering=0) as file:
            while file.write(bytes(1 << 20)):
                pass
        assert broker.append([b"z"]).status_code == 507
        assert len(broker.read_all()) == stored + 1
        ballast.unlink()
        assert broker.append([b"z"]).json()["results"] == [{"offset": stored + 1}]
        assert broker.stop() == 0
    finally:
        broker.close()
