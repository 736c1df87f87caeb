"""Who a producer is: its id, and the epoch and sequences that its batches are stamped with."""

import threading
from typing import Any
from uuid import UUID

from myqueue.protocol import routes
from myqueue.protocol.errors import MyQueueError, ProducerFenced, TopicNotFound
from myqueue.routing import CALL_S
from myqueue.sequences import Sequences, Stamp
from myqueue.transport import Transport


class Identity:
    """May be shared by threads."""

    def __init__(self, transport: Transport, topic: str, name: str) -> None:
        """Registers, and takes an epoch that is newer than those of all earlier producers of this name."""
        self._transport = transport
        self.topic = topic
        self.name = name
        opened = self._open()
        self.topic_id = UUID(opened["topic_id"])
        self._sequences = Sequences(opened["producer_id"], opened["epoch"])
        self._stamping = threading.Lock()
        self._epochs_lost = 0  # asked for, and perhaps given out without our hearing of it

    @property
    def producer_id(self) -> int:
        return self._sequences.producer_id

    def check_topic(self, topic_id: UUID) -> None:
        if topic_id != self.topic_id:
            raise TopicNotFound(f"topic {self.topic!r} was deleted and made again: it is another one now")

    def next_stamp(self, partition: int) -> Stamp:
        """For the partition's next batch. Takes a new epoch where there is no other way."""
        with self._stamping:
            stamp = self._sequences.stamp(partition)
            if stamp is None:
                self._take_new_epoch()
                stamp = self._sequences.stamp(partition)
                assert stamp is not None
            return stamp

    def stored(self, partition: int, stamp: Stamp, count: int) -> None:
        with self._stamping:
            self._sequences.stored(partition, stamp, count)

    def spend(self, partition: int, stamp: Stamp) -> None:
        """What follows in this partition needs a newer epoch."""
        with self._stamping:
            self._sequences.spend(partition, stamp)

    def _take_new_epoch(self) -> None:
        try:
            opened = self._open(repeatable=False, deadline_s=CALL_S)
        except MyQueueError as error:
            self._epochs_lost += error.outcome != "not_written"
            raise
        self.check_topic(UUID(opened["topic_id"]))
        # More epochs than those that were lost on the way were given to another instance of this name: it is the one
        # that goes on. (The first epoch of a new id follows the last one of the old id.)
        same_id = opened["producer_id"] == self.producer_id
        expected = (self._sequences.epoch + 1 if same_id else 0) + self._epochs_lost
        if opened["epoch"] > expected:
            raise ProducerFenced(outcome="not_written")
        self._sequences.renew(opened["producer_id"], opened["epoch"])
        self._epochs_lost = 0

    def _open(self, *, repeatable: bool = True, deadline_s: float | None = None) -> dict[str, Any]:
        return self._transport.call(
            routes.OPEN_PRODUCER,
            path={"topic": self.topic},
            body={"name": self.name},
            repeatable=repeatable,
            deadline_s=deadline_s,
        ).body
