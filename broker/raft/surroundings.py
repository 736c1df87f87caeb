"""What all groups of a broker share: the time, the round being filled, deadlines, peers, and a source of jitter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.raft.deadlines import Deadlines
from broker.raft.effects import Round
from broker.raft.identity import GroupId
from broker.raft.peers import Peer
from broker.raft.settings import Settings

if TYPE_CHECKING:
    from broker.raft.replica import Replica

_MASK = (1 << 64) - 1


class Surroundings:
    __slots__ = (
        "_seed",
        "booted_at",
        "deadlines",
        "durable",
        "led",
        "now",
        "peers",
        "round",
        "rows_due",
        "settings",
        "touched",
    )

    def __init__(self, settings: Settings, seed: int, now: int) -> None:
        self.settings = settings
        self.now = now
        self.booted_at = now
        self.round = Round(1)
        self.durable = 0  # highest round known to be on disk
        self.deadlines = Deadlines()
        self.peers: dict[int, Peer] = {}
        self.touched: dict[GroupId, Replica] = {}  # have something to flush in this round
        self.led: dict[GroupId, Replica] = {}
        self.rows_due: dict[GroupId, Replica] = {}  # led, and changed since the last heartbeat
        self._seed = seed & _MASK

    def peer(self, broker_id: int) -> Peer:
        peer = self.peers.get(broker_id)
        if peer is None:
            peer = self.peers[broker_id] = Peer(broker_id)
        return peer

    def jitter(self) -> int:
        """0 … election_jitter_ms by splitmix64: the seed is the only randomness of a broker's core."""
        self._seed = (self._seed + 0x9E3779B97F4A7C15) & _MASK
        mixed = self._seed
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return (mixed ^ (mixed >> 31)) % (self.settings.election_jitter_ms + 1)

    def near(self, broker_id: int) -> bool:
        """Whether that broker was heard within the shortest election timeout."""
        peer = self.peers.get(broker_id)
        return peer is not None and peer.heard_at is not None and self._recent(peer.heard_at)

    def just_booted(self) -> bool:
        """A process that does not remember whom it heard must not help to depose a leader that counts on it."""
        return self._recent(self.booted_at)

    def _recent(self, at: int) -> bool:
        return self.now - at < self.settings.election_min_ms
