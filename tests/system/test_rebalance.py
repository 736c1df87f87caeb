"""Members of a consumer while others join and leave: even shares soon, and nothing lost, skipped or stalled."""

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

from myqueue import Admin, Consumer, Message, Producer
from tests.cluster import Cluster
from tests.waiting import let_pass, until

WITHIN_S = 10.0
# Loose: it takes a fraction of that. A stall of a process or of PostgreSQL may take longer once, so the median counts.
SHARES_S = 2.0
ATTEMPTS = 3
# After a renewal that failed, a member renews at an interval of a second for a while and waits for no change. One that
# gives nothing back loses its partitions after six.
SHARES_AFTER_TAKEOVER_S = 5.0
STALL_S = 2.0  # loose, too; leases alone would take more than one second for each join
LONGEST_STALL_S = 6.0  # of each: when a partition is taken from a member that does not give it back
PAUSE_S = 0.005


class Member:
    """A consumer that reads in a thread of its own."""

    def __init__(self, url: str, topic: str) -> None:
        self._consumer = Consumer(url, topic=topic, name="shared", start="earliest")
        self.read: list[tuple[float, Message]] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for message in self._consumer:
            self.read.append((time.monotonic(), message))

    @property
    def partitions(self) -> set[int]:
        return set(self._consumer.position())

    def close(self) -> None:
        self._consumer.close()
        self._thread.join(10)
        assert not self._thread.is_alive()


def shares(members: list[Member]) -> list[int] | None:
    """How many partitions each has, once each partition has a reader."""
    held = [member.partitions for member in members]
    return [len(each) for each in held] if sum(map(len, held)) == len(set().union(*held)) else None


@contextmanager
def traffic(url: str, topic: str, partitions: int) -> Iterator[list[int]]:
    """A message to each partition every few milliseconds; the number of messages sent to each so far."""
    sent = [0] * partitions
    over = threading.Event()

    def send() -> None:
        with Producer(url, topic=topic) as producer:
            while not over.is_set():
                for partition in range(partitions):
                    producer.send(str(sent[partition]), partition=partition)
                    sent[partition] += 1
                let_pass(PAUSE_S)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    try:
        yield sent
    finally:
        over.set()
        sender.join(30)
        assert not sender.is_alive()


def longest_gaps(members: list[Member], partitions: int, since: float, until_s: float) -> list[float]:
    """The longest time without a message, of each partition."""
    times: list[list[float]] = [[since] for _ in range(partitions)]
    for at, message in sorted((read for member in members for read in member.read), key=lambda read: read[0]):
        if since <= at <= until_s:
            times[message.partition].append(at)
    return [max(b - a for a, b in zip(each, [*each[1:], until_s], strict=True)) for each in times]


def test_members_that_start_together_share_at_once(url: str, topic_name: str) -> None:
    taken_s: list[float] = []
    for attempt in range(ATTEMPTS):
        taken_s.append(start_together(url, f"{topic_name}-{attempt}"))
        if taken_s[-1] < SHARES_S:
            break
    assert min(taken_s) < SHARES_S, taken_s


def start_together(url: str, topic: str) -> float:
    """How long it took until all had the same share."""
    with Admin(url) as admin:
        admin.create_topic(topic, partitions=8)
    members = [Member(url, topic) for _ in range(4)]
    started = time.monotonic()
    try:
        until(lambda: shares(members) == [2, 2, 2, 2], within_s=WITHIN_S, what="two partitions each", pause_s=0.005)
        taken_s = time.monotonic() - started
        print(f"even shares after {1000 * taken_s:.0f} ms")
        return taken_s
    finally:
        for member in members:
            member.close()


def test_joins_and_leaves_under_traffic(url: str, topic_name: str) -> None:
    partitions = 6
    with Admin(url) as admin:
        admin.create_topic(topic_name, partitions=partitions)
    members = [Member(url, topic_name), Member(url, topic_name)]
    settled_s: defaultdict[str, list[float]] = defaultdict(list)  # by the kind of change
    moved_gaps: defaultdict[str, list[float]] = defaultdict(list)  # the longest of each change
    kept_gaps: defaultdict[str, list[float]] = defaultdict(list)
    with traffic(url, topic_name, partitions) as sent:
        until(lambda: shares(members) == [3, 3], what="both have their share")
        until(lambda: all(len(member.read) > 100 for member in members), what="messages flow")

        def measure(change: str, expected: list[int]) -> None:
            """What happens to partitions from just before the change to a second after everybody has a share again."""
            before = [member.partitions for member in members]
            since = time.monotonic()
            if change == "join":
                members.append(Member(url, topic_name))
            else:
                members[-1].close()
            changed = time.monotonic()
            alive = members if change == "join" else members[:-1]
            until(lambda: shares(alive) == expected, within_s=WITHIN_S, what=f"shares after a {change}", pause_s=0.005)
            settled = time.monotonic()
            settled_s[change].append(settled - changed)
            let_pass(1.0)
            gaps = longest_gaps(members, partitions, since, time.monotonic() - 0.2)
            kept = set().union(*(had & member.partitions for had, member in zip(before, alive, strict=False)))
            moved_gaps[change].append(max(gaps[p] for p in range(partitions) if p not in kept))
            kept_gaps[change].append(max((gaps[p] for p in kept), default=0.0))
            print(f"{change}: settled after {1000 * (settled - since):.0f} ms; longest gaps in ms:")
            print("  moved", [round(1000 * gaps[p]) for p in range(partitions) if p not in kept])
            print("  kept ", [round(1000 * gaps[p]) for p in sorted(kept)])

        closed = []
        for _ in range(3):
            measure("join", [2, 2, 2])
            measure("leave", [3, 3])
            closed.append(members.pop())
    everyone = [*members, *closed]
    until(lambda: sum(len(member.read) for member in everyone) >= sum(sent), what="everything is read")
    for member in members:
        member.close()
    read = sorted((read for member in everyone for read in member.read), key=lambda read: read[0])
    for partition in range(partitions):
        values = [int(message.value) for _, message in read if message.partition == partition]
        assert values == list(range(sent[partition])), f"partition {partition}: each message once, in order"
    for change in ("join", "leave"):
        assert median(settled_s[change]) < SHARES_S, settled_s
        for gaps in (moved_gaps, kept_gaps):
            assert median(gaps[change]) < STALL_S, gaps
            assert max(gaps[change]) < LONGEST_STALL_S, gaps


def test_a_new_write_manager_is_followed(stack: Cluster, topic_name: str) -> None:
    """Renewals that wait end with the old one. Leases go on, and the next join is not held up."""
    with Admin(stack.url) as admin:
        admin.create_topic(topic_name, partitions=4)
    members = [Member(stack.url, topic_name), Member(stack.url, topic_name)]
    with traffic(stack.url, topic_name, 4) as sent:
        until(lambda: shares(members) == [2, 2] and all(len(member.read) > 50 for member in members))
        name = stack.active_write_manager()
        stack.await_restart(name, stack.kill(name), within_s=60)
        read = [len(member.read) for member in members]
        until(
            lambda: all(len(member.read) > before + 50 for member, before in zip(members, read, strict=True)),
            within_s=20,
            what="both read on",
        )
        members += [Member(stack.url, topic_name), Member(stack.url, topic_name)]
        until(lambda: shares(members) == [1, 1, 1, 1], within_s=SHARES_AFTER_TAKEOVER_S, what="a partition each")
        until(lambda: all(member.read for member in members), what="all read")

    def missing() -> int:
        found = {(message.partition, int(message.value)) for member in members for _, message in member.read}
        return sum(sent) - len(found)

    until(lambda: not missing(), what="everything is read")
    for member in members:
        member.close()
