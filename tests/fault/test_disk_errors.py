"""A disk that fails to write or to sync: the broker ends, and does not take what the page cache has for stored."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import required
from tests.calls import Calls
from tests.cluster import BROKERS, Cluster
from tests.fault.damaged_replicas import Writer, await_same, replica_names
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

FAIL_STOP_STATUS = 70
LARGE = "x" * 900_000


@contextmanager
def failing(pid: int, call: str, output: Path) -> Iterator[None]:
    """Every `call` of the process fails with an I/O error."""
    strace = shutil.which("strace")
    if strace is None:
        required.skip("strace is not installed")
    tracer = subprocess.Popen(
        [strace, "-f", "-qq", "-p", str(pid), "-e", f"trace={call}", "-e", f"inject={call}:error=EIO", "-o", output],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until(lambda: tracer.poll() is not None or all_traced(pid), within_s=10, what="strace is attached")
        if tracer.poll() is not None and not output.exists():
            assert tracer.stderr is not None
            required.skip(f"strace cannot attach: {tracer.stderr.read()}")
        yield
    finally:
        if tracer.poll() is None:
            tracer.send_signal(signal.SIGINT)
        tracer.communicate(timeout=10)


def all_traced(pid: int) -> bool:
    """Every thread of the process; one that ends meanwhile does not count."""
    states = []
    for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
        try:
            states.append(Path(f"/proc/{pid}/task/{task}/status").read_text())
        except FileNotFoundError:
            continue
    return all("TracerPid:\t0\n" not in state for state in states)


def await_fail_stop(cluster: Cluster, name: str, runner: int) -> None:
    def has_ended() -> bool:
        lines = cluster.log_of("runner")[runner:].splitlines()
        return any(f'"{name}"' in line and f'"returncode": {FAIL_STOP_STATUS},' in line for line in lines)

    until(has_ended, within_s=30, what=f"{name} ended with {FAIL_STOP_STATUS}")


@pytest.mark.parametrize("call", ["pwritev2", "fdatasync"])
def test_a_broker_ends_when_its_disk_fails(
    cluster: Cluster, calls: Calls, topic_name: str, tmp_path: Path, call: str
) -> None:
    assert calls.create_topic(topic_name, partitions=1, replication=3).status_code == 201
    writer = Writer(calls, topic_name, 20)
    name, _ = replica_names(calls, topic_name)
    assert name is not None
    pid, runner = cluster.local.pid(name), len(cluster.log_of("runner"))
    output = tmp_path / "strace"
    with failing(pid, call, output):
        if call == "pwritev2":
            writer.write(within_s=20)
        else:
            fill_a_segment(calls, f"{topic_name}-large")
        await_fail_stop(cluster, name, runner)
    assert "(INJECTED)" in output.read_text(), "the fault was there"
    cluster.await_restart(name, pid, within_s=20)
    for _ in range(10):
        writer.write(within_s=20)
    cluster.await_voter(name, topic_name, within_s=30)
    await_same(cluster, topic_name, list(BROKERS), writer.written)


def fill_a_segment(calls: Calls, topic: str) -> None:
    """The journal goes on in the next segment, and what is in the one before is synced in the partitions' files."""
    assert calls.create_topic(topic, partitions=1, replication=3).status_code == 201
    producer = calls.producer(topic)
    for _ in range(50):
        answer = calls.produce(topic, producer, LARGE)
        if answer.status_code != 200:
            return
