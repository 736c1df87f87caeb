"""A producer's identity (id and epoch) and the sequence numbers of its batches.

Sequences count messages, per partition, from 0 with every epoch. A batch that was not written leaves its range to the
next one. After a batch of unknown outcome only a newer epoch can tell its late arrival from the batches that follow it.
"""

import threading
from typing import Any, NamedTuple
from uuid import UUID

from myqueue.protocol import routes
from myqueue.protocol.errors import MyQueueError, ProducerFenced, TopicNotFound
from myqueue.routing import CALL_S
from myqueue.transport import Transport

_SEQUENCES = 1 << 32


class Stamp(NamedTuple):
    """Identifies a batch of an idempotent producer."""

    producer_id: int
    epoch: int
    sequence: int


class Sequences:
    """The stamp of each partition's next batch. Pure."""

    def __init__(self, producer_id: int, epoch: int) -> None:
        self._identity = (producer_id, epoch)
        self._next: dict[int, Stamp] = {}  # by partition
        self._need_new_epoch: set[int] = set()  # partitions

    @property
    def producer_id(self) -> int:
        return self._identity[0]

    @property
    def epoch(self) -> int:
        return self._identity[1]

    def stamp(self, partition: int, *, continuing: bool = False) -> Stamp | None:
        """The stamp of the partition's next batch; None if a new epoch is needed first.

        `continuing`: others of the partition are in flight, so that it stays in its epoch whatever others have taken.
        """
        known = self._next.get(partition)
        if known is None or (known[:2] != self._identity and not continuing):
            self._next[partition] = known = Stamp(*self._identity, 0)
            self._need_new_epoch.discard(partition)
        return None if partition in self._need_new_epoch else known

    def advance(self, partition: int, stamp: Stamp, count: int) -> None:
        """A batch has this stamp, and the next one follows it."""
        if self._next.get(partition) == stamp:
            self._next[partition] = _following(stamp, count)

    def release(self, partition: int, stamp: Stamp, count: int) -> bool:
        """The batch with this stamp is not written: the next one gets its stamp, if it was the last one given."""
        if self._next.get(partition) != _following(stamp, count):
            return False
        self._next[partition] = stamp
        return True

    def require_new_epoch(self, partition: int, stamp: Stamp) -> None:
        """The outcome of a batch with this stamp is unknown, or the log disagrees about it."""
        known = self._next.get(partition)
        if known is not None and known[:2] == stamp[:2]:
            self._need_new_epoch.add(partition)

    def renew(self, producer_id: int, epoch: int) -> None:
        """Starts a new epoch, or the first one of a new id when the old id has no epochs left."""
        if producer_id == self.producer_id and epoch <= self.epoch:
            raise ValueError(f"epoch {epoch} is not newer than {self.epoch}")
        self._identity = (producer_id, epoch)


def _following(stamp: Stamp, count: int) -> Stamp:
    return stamp._replace(sequence=(stamp.sequence + count) % _SEQUENCES)


class ProducerIdentity:
    """May be shared by threads."""

    def __init__(
        self,
        transport: Transport,
        topic: str,
        name: str,
        lock: "threading.Lock | None" = None,
        *,
        create: bool = True,
    ) -> None:
        """Registers, and takes an epoch that is newer than those of all earlier producers of this name.

        `lock` guards `sequences`; it is not held during IO. Without `create`, a missing topic is TopicNotFound.
        """
        self._transport = transport
        self.topic = topic
        self.name = name
        self._create = create
        opened = self._open()
        self.topic_id = UUID(opened["topic_id"])
        self.sequences = Sequences(opened["producer_id"], opened["epoch"])
        self._lock = lock or threading.Lock()
        self._taking_epoch = threading.Lock()
        self._epochs_lost = 0  # requests for an epoch of unknown outcome: each may have taken one

    @property
    def producer_id(self) -> int:
        return self.sequences.producer_id

    def check_topic(self, topic_id: UUID) -> None:
        if topic_id != self.topic_id:
            raise TopicNotFound(f"topic {self.topic!r} was deleted and made again: it is another one now")

    def next_stamp(self, partition: int) -> Stamp:
        """The stamp of the partition's next batch, under a new epoch if the partition needs one."""
        while True:
            with self._lock:
                stamp = self.sequences.stamp(partition)
            if stamp is not None:
                return stamp
            self.take_new_epoch(partition)

    def stored(self, partition: int, stamp: Stamp, count: int) -> None:
        with self._lock:
            self.sequences.advance(partition, stamp, count)

    def take_new_epoch(self, partition: int) -> None:
        """A new epoch for the partition, unless another one of its batches has brought it meanwhile."""
        with self._taking_epoch:
            with self._lock:
                needed = self.sequences.stamp(partition) is None
            if needed:
                self._take_new_epoch()

    def _take_new_epoch(self) -> None:
        try:
            opened = self._open(repeatable=False, deadline_s=CALL_S)
        except MyQueueError as error:
            self._epochs_lost += error.outcome != "not_written"
            raise
        self.check_topic(UUID(opened["topic_id"]))
        # A larger step than this producer's own requests explain means that another instance of this name took an
        # epoch: that instance continues. (The first epoch of a new id follows the last one of the old id.)
        same_id = opened["producer_id"] == self.producer_id
        expected = (self.sequences.epoch + 1 if same_id else 0) + self._epochs_lost
        if opened["epoch"] > expected:
            raise self.fenced(ProducerFenced(details={"newer_epoch": opened["epoch"] - 1}))
        with self._lock:
            self.sequences.renew(opened["producer_id"], opened["epoch"])
        self._epochs_lost = 0

    def fenced(self, error: MyQueueError) -> MyQueueError:
        """The error of a newer instance of this name, with who it is and what to do."""
        if "epoch" in error.details:
            return error
        newer = error.details.get("newer_epoch")
        details = {**error.details, "topic": self.topic, "name": self.name, "producer_id": self.producer_id}
        return ProducerFenced(
            f"producer {self.name!r} of topic {self.topic!r} (id {self.producer_id}, epoch {self.sequences.epoch}) was"
            f" replaced by a newer producer of the same name{'' if newer is None else f' (epoch {newer})'}: one process"
            " at a time sends under a name. Give each process a name of its own, or none; close this producer",
            outcome="not_written",
            request_id=error.request_id,
            details={**details, "epoch": self.sequences.epoch},
        )

    def _open(self, *, repeatable: bool = True, deadline_s: float | None = None) -> dict[str, Any]:
        return self._transport.call(
            routes.OPEN_PRODUCER,
            path={"topic": self.topic},
            body={"name": self.name} if self._create else {"name": self.name, "create": False},
            repeatable=repeatable,
            deadline_s=deadline_s,
        ).body
