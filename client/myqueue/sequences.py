"""Epoch and sequences of an idempotent producer: what the next batch of a partition is stamped with. Pure.

Sequences count messages, per partition, from 0 with every epoch. The range of a batch that was not written is used by
the next one. After a batch of which nobody knows, only a newer epoch tells its late arrival from what follows it.
"""

from typing import NamedTuple

_SEQUENCES = 1 << 32


class Stamp(NamedTuple):
    """An idempotent producer's name for a batch."""

    producer_id: int
    epoch: int
    sequence: int


class Sequences:
    def __init__(self, producer_id: int, epoch: int) -> None:
        self._identity = (producer_id, epoch)
        self._next: dict[int, Stamp] = {}  # by partition
        self._spent: set[int] = set()  # partitions whose epoch must not be used any more

    @property
    def producer_id(self) -> int:
        return self._identity[0]

    @property
    def epoch(self) -> int:
        return self._identity[1]

    def stamp(self, partition: int) -> Stamp | None:
        """What the partition's next batch is stamped with; None if a new epoch is needed first."""
        known = self._next.get(partition)
        if known is None or known[:2] != self._identity:
            self._next[partition] = known = Stamp(*self._identity, 0)
            self._spent.discard(partition)
        return None if partition in self._spent else known

    def stored(self, partition: int, stamp: Stamp, count: int) -> None:
        if self._next.get(partition) == stamp:
            self._next[partition] = stamp._replace(sequence=(stamp.sequence + count) % _SEQUENCES)

    def spend(self, partition: int, stamp: Stamp) -> None:
        """The fate of a batch with this stamp is not known, or the log does not agree about it."""
        known = self._next.get(partition)
        if known is not None and known[:2] == stamp[:2]:
            self._spent.add(partition)

    def renew(self, producer_id: int, epoch: int) -> None:
        """A new epoch; or the first ones of a new id, when those of the old one are used up."""
        if producer_id == self.producer_id and epoch <= self.epoch:
            raise ValueError(f"epoch {epoch} is not newer than {self.epoch}")
        self._identity = (producer_id, epoch)
