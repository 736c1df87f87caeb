"""What the worker needs of a consumer: messages, which partitions come and go, and commits of those that it has."""

import logging
from collections.abc import Callable
from types import TracebackType
from typing import Self

from myqueue.consumer import Consumer
from myqueue.message import Message, TopicPartition
from myqueue.protocol.errors import MyQueueError, StaleCommit, StaleLease
from myqueue.start_position import Start
from myqueue.subscription_state import LeaseIdentity
from myqueue.transport import RetryPolicy, Timeouts

logger = logging.getLogger("myqueue")

_MOST_PREFETCH_BYTES = 16 << 20
_MOST_FETCH_BYTES = 4 << 20


class MessageSource:
    """Used by one thread. Inside `read` it calls `on_revoke` with partitions that are about to go, and may still be
    committed, and `on_lost` with those that are gone."""

    def __init__(
        self,
        url: str,
        topic: str,
        name: str,
        *,
        start: Start,
        max_bytes: int,
        retry: RetryPolicy,
        timeouts: Timeouts,
        on_revoke: Callable[[list[int]], None],
        on_lost: Callable[[list[int]], None],
    ) -> None:
        """`max_bytes`: what is fetched ahead, and so what a call of `read` returns."""
        self._leases: dict[int, LeaseIdentity] = {}  # under which the messages in hand were read
        self._paused: set[int] = set()
        self._on_revoke = on_revoke
        self._on_lost = on_lost
        prefetch_bytes = min(_MOST_PREFETCH_BYTES, max_bytes)
        self._consumer = Consumer(
            url,
            topic,
            name,
            start=start,
            commit="manual",
            on_assign=self._assigned,
            on_revoke=self._revoked,
            on_lost=self._lost,
            prefetch_bytes=prefetch_bytes,
            fetch_bytes=min(_MOST_FETCH_BYTES, prefetch_bytes),
            retry=retry,
            timeouts=timeouts,
        )

    @property
    def assigned(self) -> int:
        """Partitions that this process has."""
        return len(self._leases)

    def read(self, max_messages: int, timeout_s: float) -> list[Message]:
        """What there is, at least one message unless none comes in time.

        Raises StaleLease and StaleCommit of commits that were not waited for, too.
        """
        return self._consumer.poll_many(max_messages, timeout_s)

    def commit(self, offsets: dict[int, int]) -> dict[int, int]:
        """What was committed: not of partitions that were sought, or had by another process, since they were read."""
        return commit_held(self._consumer, self._held(offsets))

    def commit_later(self, offsets: dict[int, int]) -> dict[int, int]:
        """Does not wait, so that messages are read while the cluster cannot commit. Errors as of `read`."""
        return self._consumer.commit(self._held(offsets), wait=False)

    def _held(self, offsets: dict[int, int]) -> dict[int, int]:
        """A commit under a later lease would undo a seek; `on_lost` follows with the next `read`."""
        leases = self._consumer._core.leases()
        return {
            partition: offset
            for partition, offset in offsets.items()
            if partition in leases and leases[partition] == self._leases.get(partition)
        }

    def pause(self, partitions: set[int]) -> None:
        """Reads nothing of these partitions, and all others."""
        if partitions != self._paused:
            self._consumer.resume(self._paused - partitions)
            self._consumer.pause(partitions - self._paused)
            self._paused = set(partitions)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._consumer.__exit__(kind, error, trace)
        except MyQueueError as failed:  # of the last commit
            if not failed.retriable and not isinstance(failed, StaleLease | StaleCommit):
                raise
            logger.warning("%s: the last messages will be delivered again: %s", self._consumer.name, failed)

    def _assigned(self, partitions: list[TopicPartition]) -> None:
        leases = self._consumer._core.leases()
        numbers = [place.partition for place in partitions]
        self._leases |= {number: leases[number] for number in numbers if number in leases}

    def _revoked(self, partitions: list[TopicPartition]) -> None:
        self._on_revoke([place.partition for place in partitions])
        self._forget(partitions)

    def _lost(self, partitions: list[TopicPartition]) -> None:
        self._on_lost([place.partition for place in partitions])
        self._forget(partitions)

    def _forget(self, partitions: list[TopicPartition]) -> None:
        for place in partitions:
            self._leases.pop(place.partition, None)
            self._paused.discard(place.partition)
        self._consumer.resume([place.partition for place in partitions])


def commit_held(consumer: Consumer, offsets: dict[int, int]) -> dict[int, int]:
    """What was committed. Partitions that another process has by now are left out: it reads their messages."""
    wanted = dict(offsets)
    while wanted:
        try:
            consumer.commit(wanted)
        except (StaleLease, StaleCommit) as error:
            partition = error.details.get("partition_id")
            if not isinstance(partition, int):
                raise
            # One that is not wanted is of an earlier commit, which was not waited for.
            wanted.pop(partition, None)
            logger.info("partition %s went to another process before its commit: %s", partition, error)
        else:
            break
    return wanted
