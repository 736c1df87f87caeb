"""What all groups of a broker share: settings, time, jitter, deadlines, peers, and the round being filled."""

from dataclasses import dataclass
from heapq import heappop, heappush

from broker.raft.configuration import GroupId
from broker.raft.effects import RaftRound
from broker.raft.heartbeats import PeerHeartbeats
from broker.raft.messages import RowKey

DeadlineKey = GroupId | tuple[str, int]

COMMITS = ("commits", 0)

_MASK = (1 << 64) - 1


class InvariantBroken(Exception):
    """The group's state contradicts Raft's rules. Going on could lose data: the process stops."""


@dataclass(frozen=True, slots=True)
class RaftSettings:
    """Times and limits of the core.

    The lease is shorter than the shortest election timeout: a leader that lost contact with its majority resigns
    before that majority can have elected another one, as long as clocks run within 5 % of the same speed. No promise
    about stored data depends on that, only that an old term acknowledges nothing after a newer one has acknowledged.
    """

    heartbeat_ms: int = 200
    commit_ms: int = 5  # followers learn a commit index that no Append has carried after so long
    election_min_ms: int = 1000
    election_jitter_ms: int = 1000
    lease_ms: int = 900
    barred_election_ms: int = 4000  # a damaged replica waits that much longer before it campaigns
    retry_ms: int = 500  # messages in flight count as lost after that long without an answer
    append_bytes: int = 1 << 20  # of one Append; one entry always fits
    probe_bytes: int = 1 << 16
    window_messages: int = 64  # Appends in flight to one follower
    window_bytes: int = 4 << 20
    tail_bytes: int = 1 << 18  # applied entries kept in memory for followers that are a little behind
    pending_bytes: int = 16 << 20  # of entries proposed and not yet applied; more is refused (backpressure)
    pending_bytes_total: int = 64 << 20  # the same for all groups of a broker together
    promote_lag: int = 64  # entries a learner may be behind when it becomes a voter
    keys_window: int = 100_000  # idempotency keys remembered for a partition, the last ones of its log
    producers_window: int = 4_096  # idempotent producers remembered, the last ones to append
    batches_window: int = 8  # batches remembered for each of them: as many as it may have in flight
    reorder_ms: int = 500  # how long a batch waits at the leader for one before it
    reorder_batches: int = 8  # of one producer that wait
    reorder_bytes_total: int = 32 << 20  # that wait, in all groups of a broker together


class Deadlines:
    """Wakes a key at or before its deadline; the owner checks whether it is really due.

    Idle keys cost nothing, and a deadline that moves further away, the usual case, costs nothing until the old one
    comes up.
    """

    __slots__ = ("_count", "_heap", "_planned")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, DeadlineKey]] = []
        self._planned: dict[DeadlineKey, int] = {}
        self._count = 0  # ties are broken by age, so that a replay is exact

    def plan(self, key: DeadlineKey, due: int) -> None:
        planned = self._planned.get(key)
        if planned is None or due < planned:
            self._planned[key] = due
            self._count += 1
            heappush(self._heap, (due, self._count, key))

    def forget(self, key: DeadlineKey) -> None:
        self._planned.pop(key, None)

    def next_due(self) -> int | None:
        while self._heap and self._planned.get(self._heap[0][2]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop(self, now: int) -> DeadlineKey | None:
        due = self.next_due()
        if due is None or due > now:
            return None
        key = heappop(self._heap)[2]
        del self._planned[key]
        return key


class RaftContext:
    __slots__ = (
        "_seed",
        "barred",
        "booted_at",
        "commits_due",
        "deadlines",
        "disk_low",
        "durable",
        "led",
        "now",
        "peer_type",
        "peers",
        "pending_bytes",
        "reorder_bytes",
        "round",
        "rows_due",
        "settings",
        "touched",
    )

    def __init__(
        self, settings: RaftSettings, seed: int, now: int, peer_type: type[PeerHeartbeats] = PeerHeartbeats
    ) -> None:
        self.settings = settings
        self.peer_type = peer_type
        self.now = now
        self.booted_at = now
        self.round = RaftRound(1)
        self.durable = 0  # highest round known to be on disk
        self.disk_low = False  # this broker's disk is below the low mark
        self.pending_bytes = 0  # proposed in groups led here and not yet applied
        self.reorder_bytes = 0  # of batches that wait for one before them
        self.deadlines = Deadlines()
        self.peers: dict[int, PeerHeartbeats] = {}
        # Sets of groups in the order they came in, so that a replay is exact.
        self.touched: dict[GroupId, None] = {}  # to be flushed in this round
        self.led: dict[GroupId, None] = {}
        self.barred: dict[GroupId, RowKey] = {}  # groups whose replica here should not lead
        self.rows_due: dict[GroupId, None] = {}  # led, and changed since the last heartbeat
        self.commits_due: dict[GroupId, None] = {}  # led, and followers may not know the commit index
        self._seed = seed & _MASK

    def peer(self, broker_id: int) -> PeerHeartbeats:
        peer = self.peers.get(broker_id)
        if peer is None:
            peer = self.peers[broker_id] = self.peer_type(broker_id)
        return peer

    def has_room(self, broker_id: int) -> bool:
        """By that peer's last answer. Without contact nothing is known about it, and it does not count as full."""
        peer = self.peers.get(broker_id)
        return peer is None or not (peer.contact and peer.disk_low)

    def jitter(self) -> int:
        """0 … election_jitter_ms by splitmix64: the seed is the only randomness of a broker's core."""
        self._seed = (self._seed + 0x9E3779B97F4A7C15) & _MASK
        mixed = self._seed
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return (mixed ^ (mixed >> 31)) % (self.settings.election_jitter_ms + 1)

    def received_recently(self, broker_id: int) -> bool:
        """Whether a heartbeat of that broker came within the shortest election timeout."""
        peer = self.peers.get(broker_id)
        return peer is not None and peer.received_at is not None and self._is_recent(peer.received_at)

    def just_booted(self) -> bool:
        """A process that may have missed heartbeats before its start must not help to depose a leader."""
        return self._is_recent(self.booted_at)

    def _is_recent(self, at: int) -> bool:
        return self.now - at < self.settings.election_min_ms
