"""The invoice pipeline as a user runs it: real processes, and a proof that the counts add up."""

import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from examples.invoices import ALL_TOPIC
from myqueue import Admin
from tests.cluster import Cluster
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]


def start(*arguments: str, home: Path | None = None) -> subprocess.Popen[str]:
    """`home` of the stack that counts as the checkout's own."""
    return subprocess.Popen(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"COLUMNS": "80"} | ({} if home is None else {"MYQUEUE_HOME": str(home)}),
    )


def finish(process: subprocess.Popen[str], within_s: float) -> str:
    try:
        output, _ = process.communicate(timeout=within_s)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    return output


def test_it_adds_up_and_can_be_repeated(stack: Cluster) -> None:
    for _ in range(2):
        process = start("examples.invoices", "--url", stack.url, "--generators", "2", "--invoices", "61")
        output = finish(process, 100)
        assert process.returncode == 0, output
        assert "It adds up" in output
        assert all(len(line) <= 80 for line in output.splitlines())
        assert "No broker is killed: this is not the running stack of this checkout." in output
        assert re.search(r"gen1 │ +31 │", output), output
        assert f"{stack.url}/  the console" in output
        assert f"{stack.url}/docs" in output


def test_it_kills_a_broker_and_every_filter_has_its_share(stack: Cluster) -> None:
    process = start(
        *("examples.invoices", "--url", stack.url, "--invoices", "9000", "--rate", "750"),
        home=stack.local.home.root,
    )
    output = finish(process, 150)
    assert process.returncode == 0, output
    assert re.search(r"broker-\d killed with kill -9: it was the leader of \d+ of 12", output), output
    assert "other brokers lead them" in output
    assert re.search(r"broker-\d is back after", output), output
    shares = re.findall(r"│ filter\d │ +([0-9,]+) │", output)
    assert len(shares) == 4
    assert all(int(share.replace(",", "")) > 0 for share in shares), output
    assert re.search(r"sent again by another filter, and left out │ +0 │", output), output
    assert "It adds up" in output
    stack.heal()


def test_it_adds_up_while_services_are_killed(stack: Cluster) -> None:
    with Admin(stack.url) as admin:
        admin.register_producer(ALL_TOPIC)

        def generated(at_least: int) -> bool:
            return sum(partition.end_offset for partition in admin.partitions(ALL_TOPIC)) >= at_least

        before = sum(partition.end_offset for partition in admin.partitions(ALL_TOPIC))
        process = start("examples.invoices", "--url", stack.url, "--invoices", "1500", "--rate", "100")
        try:
            for name, count in (("read-manager-1", 100), ("broker-2", 400), (None, 800)):
                until(partial(generated, before + count), within_s=40, what=f"{count} were sent")
                assert process.poll() is None
                stack.kill(name or stack.active_write_manager())
        finally:
            output = finish(process, 100)
    assert process.returncode == 0, output
    assert "It adds up" in output
    stack.heal()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.slow
def test_a_filter_by_hand_ends_between_two_invoices(stack: Cluster, how: signal.Signals) -> None:
    group = f"by-hand-{how.name}"
    with Admin(stack.url) as admin:
        admin.register_producer(ALL_TOPIC)
        consumer_id = admin.register_consumer(ALL_TOPIC, name=group, start="latest")
        generator = start(
            "examples.invoices.generator", "--name", "gen1", "--address", stack.url, "--id", "1234", "--count", "20"
        )
        output = finish(generator, 60)
        assert generator.returncode == 0, output
        judge = start("examples.invoices.filter", "--name", "filter1", "--address", stack.url, "--group", group)
        until(lambda: admin.size(ALL_TOPIC, consumer_id) == 0, within_s=60, what="all is filtered")
        judge.send_signal(how)
        output = finish(judge, 20)
        assert judge.returncode == 0, output
        assert "filter1: 20 invoices filtered" in output


def test_an_address_where_nothing_answers_is_told() -> None:
    process = start("examples.invoices", "--url", "http://127.0.0.1:1")
    output = finish(process, 30)
    assert process.returncode == 1
    assert "cannot connect" in output
    assert "Traceback" not in output
