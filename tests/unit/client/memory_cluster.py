"""A scripted answer that behaves like a small cluster: a topic's log, producers with sequences, a leased consumer."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from myqueue.protocol import batch as batches
from myqueue.protocol.batch import NO_PRODUCER, Header, Message
from myqueue.protocol.partitioner import partition_for
from tests.unit.client.scripted_server import Reply, Seen, failure
from tests.waiting import let_pass

GRANT = "let me in"
LEASE_MS = 600
WINDOW = 8  # batches of a producer that a log remembers


@dataclass
class Log:
    """One partition, with what it remembers of producers."""

    entries: list[tuple[Header, bytes]] = field(default_factory=list)
    beginning: int = 0
    producers: dict[int, tuple[int, int]] = field(default_factory=dict)  # id: epoch and next sequence
    waiting: int = 0  # batches that overtook others

    @property
    def end(self) -> int:
        return self.entries[-1][0].end_offset if self.entries else self.beginning

    def append(self, header: Header, body: bytes) -> Header:
        placed = batches.placed(header, self.end, 1_700_000_000_000)
        self.entries.append((placed, body))
        return placed


@dataclass
class Lease:
    member: str
    generation: int
    revoking: bool = False


class MemoryCluster:
    """One topic, producer 3, one consumer. Broker 1 leads each partition; `leaders` may be changed."""

    def __init__(self, partitions: int = 1, topic: str = "orders", consumer_id: int = 5) -> None:
        self.topic = topic
        self.topic_id = UUID(int=consumer_id)
        self.consumer_id = consumer_id
        self.logs = [Log() for _ in range(partitions)]
        self.leaders: list[int | None] = [1] * partitions
        self.epochs: dict[str, int] = {}  # of producers, by name
        self.cursors = [0] * partitions
        self.leases: dict[int, Lease] = {}
        self.commits: list[dict[int, int]] = []
        self.generation = 0
        self.left: set[str] = set()  # members; a poll of one that still waits gets nothing
        self.lease_ms = LEASE_MS
        self.can_wait = False  # whether a poll waits for a change of leases
        self.lock = threading.RLock()
        self.appended = threading.Condition(self.lock)
        self.gap_s = 0.1  # how long a batch that overtook others waits for them
        self._keys: dict[str, tuple[int, int]] = {}

    @property
    def messages(self) -> list[Any]:
        """The values of partition 0."""
        return self.values(0)

    def values(self, partition: int) -> list[str]:
        return [message.value.decode() for message in self.stored(partition)]

    def stored(self, partition: int) -> list[Message]:
        entries = self.logs[partition].entries
        return [message for _, body in entries for message in batches.messages_of(batches.decode_body(body))]

    def put(self, *values: str | bytes, partition: int = 0, codec: int = 0) -> None:
        """Messages from nowhere, as one batch."""
        messages = [
            Message(value.encode() if isinstance(value, str) else value, timestamp=1_600_000_000_000 + number)
            for number, value in enumerate(values)
        ]
        body = batches.encode_body(messages, codec)
        with self.lock:
            self.logs[partition].append(batches.header_for(self.topic_id, partition, body, len(messages), codec), body)

    def __call__(self, seen: Seen) -> Reply:
        named: dict[str, Callable[[], Reply]] = {
            "/producer/register": lambda: Reply(201, {"producer_id": 3}),
            "/consumer/register": lambda: Reply(201, {"consumer_id": self.consumer_id}),
            "/size": lambda: Reply(200, {"size": sum(log.end for log in self.logs) - sum(self.cursors)}),
            "/producer/produce": lambda: self.produce(seen),
            "/consumer/consume": self.consume,
            f"/topics/{self.topic}/partitions": lambda: Reply(200, {"partitions": self.ends()}),
            f"/v1/topics/{self.topic}/producers": lambda: self.open_producer(seen.body.get("name")),
            f"/v1/routing/{self.topic}": lambda: Reply(200, self.routing()),
        }
        if seen.path in named:
            return named[seen.path]()
        if f"/topics/{self.topic_id}/" in seen.path:
            return self.append(seen) if seen.method == "POST" else self.fetch(seen)
        if seen.path.startswith(f"/v1/consumers/{self.consumer_id}/"):
            calls = {"poll": self.poll, "commit": self.commit, "seek": self.seek, "lag": self.lag}
            if seen.path.endswith("/poll"):
                self.await_change(seen)
            with self.lock:
                return calls[seen.path.rsplit("/", 1)[1]](seen)
        return Reply(404, failure(404, 40400, "no such path"))

    def open_producer(self, name: str | None = None) -> Reply:
        """The first name is producer 3; so is a call without one."""
        with self.lock:
            name = name or next(iter(self.epochs), "")
            self.epochs[name] = epoch = self.epochs.get(name, -1) + 1
            producer_id = 3 + 1000 * list(self.epochs).index(name)
            return Reply(201, {"producer_id": producer_id, "epoch": epoch, "topic_id": str(self.topic_id)})

    @property
    def epoch(self) -> int:
        """Of producer 3."""
        return next(iter(self.epochs.values()), -1)

    def ends(self) -> list[dict[str, int]]:
        return [{"partition_id": partition, "end_offset": log.end} for partition, log in enumerate(self.logs)]

    def consume(self) -> Reply:
        """Of partition 0."""
        with self.lock:
            if self.cursors[0] >= self.logs[0].end:
                return Reply(204, None)
            self.cursors[0] += 1
            return Reply(200, {"message": self.values(0)[self.cursors[0] - 1], "partition_id": 0})

    def routing(self) -> dict[str, Any]:
        partitions = [
            {"partition_id": p, "leader": leader, "term": 1, "replicas": [1, 2, 3], "path": None}
            for p, leader in enumerate(self.leaders)
        ]
        expires_at = int(time.time() * 1000) + 60_000
        return {"topic": self.topic, "topic_id": str(self.topic_id), "partitions": partitions} | {
            "grant": GRANT,
            "expires_at": expires_at,
        }

    def produce(self, seen: Seen) -> Reply:
        with self.lock:
            if seen.key not in self._keys:
                partition = seen.body.get("partition_id", partition_for(seen.key.encode(), len(self.logs)))
                self._keys[seen.key] = (partition, self.logs[partition].end)
                self.put(seen.body["message"], partition=partition)
            partition, offset = self._keys[seen.key]
            return Reply(200, {"partition_id": partition, "offset": offset})

    def append(self, seen: Seen) -> Reply:
        broker_id, partition = _place(seen)
        if seen.headers["x-myqueue-grant"] != GRANT:
            return Reply(401, failure(401, 40102, retriable=True, outcome="not_written"))
        with self.lock:
            leader = self.leaders[partition]
            if leader != broker_id:
                return Reply(421, failure(421, 42101, outcome="not_written", details={"leader": leader}))
            header, body, _ = batches.split(seen.body)
            batches.validate(header, body)
            assert (header.topic_id, header.partition) == (self.topic_id, partition)
            log = self.logs[partition]
            if header.producer_id != NO_PRODUCER:
                if log.waiting < WINDOW:
                    log.waiting += 1
                    self.appended.wait_for(
                        lambda: _problem(header, log.producers.get(header.producer_id)) not in (40904, 40906),
                        self.gap_s,
                    )
                    log.waiting -= 1
                known = log.producers.get(header.producer_id)
                problem = _problem(header, known)
                if problem is not None:
                    return Reply(409, failure(409, problem, outcome="not_written", retriable=problem == 40904))
                if known is not None and known[0] == header.producer_epoch and header.sequence < known[1]:
                    return self._repetition(log, header)
                log.producers[header.producer_id] = (header.producer_epoch, header.sequence + header.count)
                self.appended.notify_all()
            return Reply(200, _appended(log.append(header, bytes(body)), False))

    def _repetition(self, log: Log, header: Header) -> Reply:
        mine = [before for before, _ in log.entries if before.producer_id == header.producer_id]
        for before in mine[-WINDOW:]:
            same = before.producer_epoch == header.producer_epoch and before.sequence == header.sequence
            if same and before.body_crc == header.body_crc:
                return Reply(200, _appended(before, True))
        return Reply(409, failure(409, 40903, outcome="not_written"))

    def fetch(self, seen: Seen) -> Reply:
        _, partition = _place(seen)
        offset = int(seen.query["offset"])
        deadline = time.monotonic() + int(seen.query["wait_ms"]) / 1000
        while True:
            with self.lock:
                log = self.logs[partition]
                known = {"X-Myqueue-End-Offset": str(log.end), "X-Myqueue-Beginning-Offset": str(log.beginning)}
                if offset < log.beginning:
                    details = {"beginning_offset": log.beginning}
                    return Reply(410, failure(410, 41001, details=details))
                found = [header.pack() + body for header, body in log.entries if header.end_offset > offset]
            if found:
                return Reply(200, b"".join(found), known)
            if time.monotonic() >= deadline:
                return Reply(204, None, known)
            let_pass(0.005)

    def await_change(self, seen: Seen) -> None:
        """As a read manager: while the member's leases are those that it knows."""
        member, known = seen.body["member"], seen.body.get("assignment")
        deadline = time.monotonic() + seen.body.get("wait_ms", 0) / 1000
        while known is not None and time.monotonic() < deadline:
            with self.lock:
                free = len(self.leases) < len(self.logs)
                if free or self.assignment(member) != known:
                    return
            let_pass(0.002)

    def assignment(self, member: str) -> str:
        return str(sorted((p, x.generation, x.revoking) for p, x in self.leases.items() if x.member == member))

    def poll(self, seen: Seen) -> Reply:
        member = seen.body["member"]
        for partition in seen.body.get("released", ()):
            if self.leases.get(partition, Lease("", 0)).member == member:
                del self.leases[partition]
        if seen.body.get("leave"):
            self.left.add(member)
            self.leases = {p: lease for p, lease in self.leases.items() if lease.member != member}
        elif member not in self.left:  # else it left while this poll waited
            for partition in range(len(self.logs)):
                if partition not in self.leases:
                    self.lease(partition, member)
        held = [
            {"partition_id": p, "generation": lease.generation, "cursor": self.cursors[p], "revoking": lease.revoking}
            for p, lease in sorted(self.leases.items())
            if lease.member == member
        ]
        named = {"consumer_id": self.consumer_id, "topic": self.topic, "topic_id": str(self.topic_id)}
        known = {"assignment": self.assignment(member)} if self.can_wait else {}
        return Reply(200, named | known | {"leases": held, "lease_ms": self.lease_ms, "messages": []})

    def lag(self, _: Seen) -> Reply:
        partitions = [
            {"partition_id": p, "cursor": self.cursors[p], "end_offset": log.end, "messages": log.end - self.cursors[p]}
            | {"bytes": 0, "seconds": 0.0, "member": self.leases[p].member if p in self.leases else None}
            for p, log in enumerate(self.logs)
        ]
        return Reply(200, {"partitions": partitions, "messages": 0, "bytes": 0, "seconds": 0.0})

    def lease(self, partition: int, member: str, *, new_manager: bool = False) -> None:
        self.generation += (1 << 32) if new_manager else 1
        self.leases[partition] = Lease(member, self.generation)

    def commit(self, seen: Seen) -> Reply:
        wanted = {entry["partition_id"]: entry for entry in seen.body["offsets"]}
        for partition, entry in wanted.items():
            lease = self.leases.get(partition)
            stale = lease is None or lease.generation != entry.get("generation", lease.generation)
            if stale or (lease is not None and lease.member != seen.body["member"]):
                return Reply(409, failure(409, 40908, details={"partition_id": partition}))
            if entry["offset"] < self.cursors[partition]:
                details = {"partition_id": partition, "cursor": self.cursors[partition]}
                return Reply(409, failure(409, 40907, details=details))
        self.commits.append({partition: entry["offset"] for partition, entry in wanted.items()})
        for partition, entry in wanted.items():
            self.cursors[partition] = entry["offset"]
        return Reply(200, {"cursors": [{"partition_id": p, "offset": self.cursors[p]} for p in wanted]})

    def seek(self, seen: Seen) -> Reply:
        to, moved = seen.body["to"], []
        for partition, log in enumerate(self.logs):
            if seen.body.get("partition_id", partition) != partition:
                continue
            offset = to["offset"] if isinstance(to, dict) else log.beginning if to == "earliest" else log.end
            self.cursors[partition] = offset
            self.generation += 1
            if partition in self.leases:
                self.leases[partition] = replace(self.leases[partition], generation=self.generation)
            moved.append({"partition_id": partition, "offset": offset, "generation": self.generation})
        return Reply(200, {"cursors": moved})


class SeveralTopics:
    """Clusters that answer for a topic each."""

    def __init__(self, *clusters: MemoryCluster) -> None:
        self.clusters = list(clusters)

    def __call__(self, seen: Seen) -> Reply:
        if seen.path == "/topics":
            names = [cluster.topic for cluster in self.clusters]
            return Reply(200, {"topics": names}) if names else Reply(404, failure(404, 40405, "no topics"))
        told = seen.body if isinstance(seen.body, dict) else seen.query
        parts = seen.path.split("/")
        for cluster in self.clusters:
            places = [cluster.topic, str(cluster.topic_id)]
            consumed = seen.path.startswith(f"/v1/consumers/{cluster.consumer_id}/")
            if consumed or told.get("topic") == cluster.topic or any(place in parts for place in places):
                return cluster(seen)
        if seen.path.startswith("/v1/consumers/"):
            return Reply(404, failure(404, 40403, "consumer not found"))
        return Reply(404, failure(404, 40401, "topic not found"))


def _place(seen: Seen) -> tuple[int, int]:
    parts = seen.path.split("/")
    return int(parts[3]), int(parts[7])


def _problem(header: Header, known: tuple[int, int] | None) -> int | None:
    """The code of what a log has against a batch's stamp."""
    if known is None:
        return None if header.sequence == 0 else 40906
    epoch, expected = known
    if header.producer_epoch < epoch:
        return 40905
    if header.producer_epoch > epoch:
        expected = 0
    return 40904 if header.sequence > expected else None


def _appended(header: Header, duplicate: bool) -> dict[str, Any]:
    return {
        "status": "success",
        "base_offset": header.base_offset,
        "count": header.count,
        "append_time": header.append_time,
        "end_offset": header.end_offset,
        "duplicate": duplicate,
    }
