"""Micro-batches are published while brokers are killed, and each is read back at once, up to the ends that the leaders
answer: nothing may be missing and nothing twice. For longer than a test takes:

    python -m tests.spark.reading_back --rounds 1000
"""

import argparse
import random
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from myqueue import Admin
from myqueue.protocol import routes
from myqueue.protocol.json_bytes import bytes_from_json
from myqueue.spark import sink
from myqueue.spark.manifest import MicroBatch
from myqueue.spark.options import stream_write_options
from myqueue.spark.publisher import publish
from myqueue.transport import Transport
from tests.cluster import BROKERS, Cluster, answer_of, running_cluster
from tests.waiting import until

PARTITIONS = 3
TASKS, ROWS = 2, 30
ANSWER_S = 60.0  # a leader is elected, a follower catches up


@dataclass
class ReadingBack:
    rounds: int = 0
    messages: int = 0
    kills: int = 0
    moved_leaders: int = 0  # seen between two rounds
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        found = f"{len(self.problems)} of them not read back" if self.problems else "each read back whole"
        return (
            f"{self.rounds} micro-batches of {TASKS * ROWS} messages, {self.kills} kills of brokers,"
            f" {self.moved_leaders} leaders moved: {found}"
        )


class BrokerKiller(threading.Thread):
    """kill -9 of one broker after the other; the next dies when the last is back."""

    def __init__(self, stack: Cluster, seed: int) -> None:
        super().__init__(name="broker-killer", daemon=True)
        self._stack = stack
        self._random = random.Random(seed)
        self._done = threading.Event()
        self.kills = 0

    def run(self) -> None:
        while not self._done.wait(self._random.uniform(0.2, 1.5)):
            name = self._random.choice(BROKERS)
            died = self._stack.kill(name)
            self.kills += 1
            until(lambda: self._is_back(name, died), within_s=ANSWER_S, what=f"{name} is back")  # noqa: B023

    def end(self) -> None:
        self._done.set()
        self.join(2 * ANSWER_S)
        assert not self.is_alive()

    def _is_back(self, name: str, died: int) -> bool:
        if self._done.is_set():
            return True
        answer = answer_of(f"{self._stack.operations_url(name)}/readyz")
        return self._stack.pid(name) != died and answer is not None and answer.status_code == 200


class Reader:
    """Reads what was appended since the last time, up to the ends that the leaders answer."""

    def __init__(self, transport: Transport, topic: str) -> None:
        self._transport = transport
        self._topic = topic
        self.ends = dict.fromkeys(range(PARTITIONS), 0)

    def read(self) -> Counter[bytes]:
        body = self._transport.call(routes.TOPIC_OFFSETS, path={"topic": self._topic}, deadline_s=ANSWER_S).body
        found: Counter[bytes] = Counter()
        for one in body["partitions"]:
            partition, end = one["partition_id"], one["end_offset"]
            found.update(self._values(partition, end))
            self.ends[partition] = max(end, self.ends[partition])
        return found

    def _values(self, partition: int, end: int) -> list[bytes]:
        values: list[bytes] = []
        offset, deadline = self.ends[partition], time.monotonic() + ANSWER_S
        while offset < end:
            assert time.monotonic() < deadline, f"{self._topic}/{partition} is readable up to {offset}, not to {end}"
            answer = self._transport.call(
                routes.LIST_MESSAGES,
                path={"topic": self._topic, "partition_id": partition},
                query={"offset": offset, "limit": min(10_000, end - offset), "wait_ms": 1000},
                wait_s=1.0,
                deadline_s=ANSWER_S,
            )
            if answer.status != 204:  # the replica that was asked does not have it yet
                values += [bytes_from_json(message["value"]) for message in answer.body["messages"]]
                offset = answer.body["next_offset"]
        return values


def read_back(
    stack: Cluster, *, seed: int, rounds: int, within_s: float, least_rounds: int = 0, least_kills: int = 0
) -> ReadingBack:
    """Until there were so many rounds, or the time is over; for the least of them, three times as long."""
    topic, query = f"t-{uuid.uuid4().hex[:12]}", str(uuid.uuid4())
    options = stream_write_options({"url": stack.url, "topic": topic, "batchBytes": "500"})
    result = ReadingBack()
    with Admin(stack.url) as admin:
        admin.create_topic(topic, PARTITIONS, replication=3)
    transport = Transport(stack.url)
    reader, killer = Reader(transport, topic), BrokerKiller(stack, seed)
    started = time.monotonic()
    leaders: list[int | None] = []

    def goes_on() -> bool:
        is_short = result.rounds < least_rounds or killer.kills < least_kills
        return time.monotonic() - started < (3 * within_s if is_short else within_s)

    killer.start()
    try:
        while result.rounds < rounds and goes_on():
            number = result.rounds
            # Every other one is staged in its manifest.
            staged = options if number % 2 else replace(options, max_inline_bytes=0)
            entries, expected = [], Counter[bytes]()
            for task in range(TASKS):
                values = [f"{number} {task} {row}".encode() for row in range(ROWS)]
                expected.update(values)
                frame = pa.record_batch({"value": values, "key": [value[-1:] for value in values]})
                entries += sink.stage(staged, iter([frame]), MicroBatch(query, number), task).batches
            publish(options, MicroBatch(query, number), entries)
            found = reader.read()
            if found != expected:
                missing, surplus = expected - found, found - expected
                result.problems.append(
                    f"seed {seed}, micro-batch {number}: {missing.total()} missing, {surplus.total()} too many"
                    f" (ends {reader.ends}): {sorted(missing)[:3]} {sorted(surplus)[:3]}"
                )
            listed = transport.call(routes.LIST_PARTITIONS, path={"topic": topic}, deadline_s=ANSWER_S).body
            now = [one["leader"] for one in listed["partitions"]]
            result.moved_leaders += sum(a != b for a, b in zip(leaders, now, strict=False))
            leaders = now
            result.rounds += 1
            result.messages += expected.total()
    finally:
        killer.end()
        transport.close()
    result.kills = killer.kills
    return result


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.spark.reading_back", description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 100_000)
    parser.add_argument("--within-s", type=float, default=3600.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, running_cluster(Path(folder)) as stack:
        result = read_back(stack, seed=arguments.seed, rounds=arguments.rounds, within_s=arguments.within_s)
    print(result, *result.problems, sep="\n")
    return 1 if result.problems else 0


if __name__ == "__main__":
    sys.exit(main())
