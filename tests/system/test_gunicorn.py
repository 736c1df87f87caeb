"""`gunicorn --preload`: the producer is opened before the workers are forked, and each of them sends with it."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests

from myqueue import Admin, Reader
from tests.waiting import until

ROOT = Path(__file__).parents[2]
WITHIN_S = 60.0
REQUESTS = 60


@pytest.fixture
def shop(url: str, topic_name: str, tmp_path: Path) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    """Its address and its process."""
    log = tmp_path / "gunicorn.log"
    words = ["--preload", "--workers", "2", "--worker-class", "gthread", "--threads", "4", "--bind", "127.0.0.1:0"]
    command = [sys.executable, "-m", "gunicorn", *words, "--log-file", str(log), "tests.system.preloaded_shop"]
    environment = os.environ | {"MYQUEUE_URL": url, "SHOP_TOPIC": topic_name, "PYTHONPATH": str(ROOT / "client")}
    with subprocess.Popen(command, cwd=ROOT, env=environment) as process:
        try:
            yield address_in(log, process), process
        finally:
            process.kill()


def address_in(log: Path, process: "subprocess.Popen[bytes]") -> str:
    found: list[str] = []

    def listens() -> bool:
        assert process.poll() is None, log.read_text()
        found[:] = re.findall(r"Listening at: (http://\S+)", log.read_text()) if log.exists() else []
        return bool(found)

    until(listens, within_s=WITHIN_S, what="it listens")
    return found[0]


def stored(url: str, topic: str) -> list[str]:
    with Admin(url) as admin:
        bounds = admin.offsets(topic)
    values: list[str] = []
    with Reader(url, topic, {number: bound.beginning_offset for number, bound in bounds.items()}) as reader:
        while any(offset < bounds[number].end_offset for number, offset in reader.position().items()):
            message = reader.poll(WITHIN_S)
            assert message is not None
            values.append(message.text)
    return values


def test_the_workers_of_a_preloaded_application_send_with_its_producer(
    url: str, topic_name: str, shop: tuple[str, "subprocess.Popen[bytes]"]
) -> None:
    address, process = shop

    def order(number: int) -> dict[str, Any]:
        response = requests.get(f"{address}/order-{number}", timeout=WITHIN_S)
        response.raise_for_status()
        answer: dict[str, Any] = response.json()
        return answer

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(order, range(REQUESTS)))
    asked = REQUESTS
    while len({answer["process"] for answer in answers}) < 2 and asked < 50 * REQUESTS:  # the kernel chooses the worker
        answers.append(order(asked))
        asked += 1
    workers = {answer["process"] for answer in answers}
    assert len(workers) == 2
    assert process.pid not in workers

    os.kill(min(workers), signal.SIGKILL)

    def is_replaced() -> bool:
        nonlocal asked
        try:
            answers.append(order(asked))
        except requests.ConnectionError:  # the one that was killed had accepted it: a number that was not sent
            return False
        finally:
            asked += 1
        return len({answer["process"] for answer in answers}) == 3

    until(is_replaced, within_s=WITHIN_S, what="a worker that was forked later sends")

    process.send_signal(signal.SIGTERM)
    assert process.wait(WITHIN_S) == 0
    values = stored(url, topic_name)
    assert len(values) == len(set(values)), "nothing is there twice"
    orders = {value for value in values if value.startswith("order-")}
    assert set(values) - orders == {f"loaded by {process.pid}"}
    places = {(answer["partition"], answer["offset"]) for answer in answers}
    assert len(places) == len(answers) == len(orders), "what was answered is what is stored"
