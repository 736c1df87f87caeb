"""Damage for the files of a running stack's brokers, and how it is seen to heal."""

from collections.abc import Callable
from pathlib import Path

import requests

from broker.storage.entry import Corrupted
from myqueue.protocol import batch as batches
from myqueue.protocol import http_headers, internal
from tests.calls import Calls
from tests.cluster import BROKERS, Cluster
from tests.waiting import until

PAGE_BYTES = 4096


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        [byte] = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 0x10]))


def place_of(paths: list[Path], needle: bytes) -> tuple[Path, int]:
    """The first file that has these bytes, and where."""
    for path in paths:
        at = path.read_bytes().find(needle)
        if at >= 0:
            return path, at
    raise AssertionError(f"{needle!r} is in none of {len(paths)} files")


def partition_files(folder: Path, suffix: str = ".log") -> list[Path]:
    return sorted((folder / "partitions").rglob(f"*{suffix}"))


def change_stopped(cluster: Cluster, name: str, change: Callable[[Path], None]) -> None:
    cluster.stop(name)
    change(cluster.data_folder(name))
    cluster.start(name)


def settle_files(cluster: Cluster, name: str) -> None:
    """Everything is in the partitions' files: a start replays nothing of it from the journal afterwards."""
    cluster.stop(name)
    cluster.start(name)


def handed_out(cluster: Cluster, name: str, topic: str, partition_id: int = 0, start: int = 0) -> list[bytes]:
    """What the broker hands out, message by message, up to its end; what it refuses is left out."""
    path = internal.MESSAGES.path_for(topic_id=cluster.topic_id(topic), partition_id=partition_id)
    values: list[bytes] = []
    with requests.Session() as session:
        session.headers[http_headers.SECRET] = cluster.secret
        offset = start
        while True:
            url = f"{cluster.address_of(name)}{path}?offset={offset}&limit=1"
            answer = session.get(url, timeout=5)
            if answer.status_code == 200:
                header, body, _ = batches.split(answer.content)
                values += [message.value for message in batches.messages_of(batches.validate(header, body))]
            elif answer.status_code != 503:
                return values
            elif len(values) == 0 and offset > start + 10:
                return values  # it refuses everything
            offset += 1


class Writer:
    """One producer that goes on writing; every value in the order in which it was acknowledged."""

    def __init__(self, calls: Calls, topic: str, count: int) -> None:
        self._calls = calls
        self._topic = topic
        self._producer = calls.producer(topic)
        self.written: list[bytes] = []
        self.failures = 0
        for _ in range(count):
            self.write()

    def write(self, within_s: float = 10) -> None:
        """Under a key: an unknown outcome does not make two of it."""
        value = f"{self._topic} {len(self.written):06d} " + "x" * 200
        key = {"Idempotency-Key": value[:40]}

        def is_written() -> bool:
            answer = self._calls.produce(self._topic, self._producer, value, key)
            if answer.status_code != 200:
                assert answer.status_code == 503, answer.text
                self.failures += 1
            return answer.status_code == 200

        until(is_written, within_s=within_s, what="a message is taken")
        self.written.append(value.encode())

    def needle(self, number: int) -> bytes:
        return self.written[number][:-200]


def incarnation_of(cluster: Cluster, name: str, topic: str) -> int:
    replica = cluster.replica(name, topic)
    assert replica is not None
    return replica.incarnation


def await_rebuilt(
    cluster: Cluster, name: str, topic: str, incarnation: int, writer: Writer, *, within_s: float
) -> set[str]:
    """It is another member by now, and a voter. Messages are taken meanwhile. What was set aside for a while."""
    topic_id = cluster.topic_id(topic)
    seen: set[str] = set()

    def look() -> bool:
        seen.update(aside(cluster, name))
        writer.write(within_s=5)
        try:
            replica = cluster.replica(name, topic_id)
        except Corrupted:
            return False
        if replica is None or replica.incarnation == incarnation:
            return False
        return replica.is_voter and not replica.is_changing

    until(look, within_s=within_s, what=f"{name} was rebuilt and votes")
    return seen


def aside(cluster: Cluster, name: str) -> list[str]:
    folder = cluster.data_folder(name) / "aside"
    return [path.name for path in folder.iterdir()] if folder.is_dir() else []


def await_same(cluster: Cluster, topic: str, names: list[str], written: list[bytes]) -> None:
    """Each of these brokers hands out everything that was acknowledged."""

    def is_same() -> bool:
        return all([value for _, value in cluster.messages(name, topic)] == written for name in names)

    until(is_same, within_s=20, what="all replicas have everything")


def replica_names(calls: Calls, topic: str) -> tuple[str | None, list[str]]:
    """The leader, and the brokers that hold the partition."""
    partition = calls.partitions(topic).json()["partitions"][0]
    leader = partition["leader"]
    return None if leader is None else BROKERS[leader - 1], [BROKERS[b - 1] for b in partition["replicas"]]
