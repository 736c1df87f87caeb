"""The cursors of the consumer under whose name a stream reads: they follow it, so that its lag is there to be seen."""

import logging

from myqueue.protocol import routes
from myqueue.protocol.errors import (
    ConsumerNotFound,
    MyQueueError,
    PastEnd,
    RegistrationConflict,
    StaleCommit,
    StaleLease,
    TopicNotFound,
)
from myqueue.spark.offsets import Progress
from myqueue.transport import Transport

logger = logging.getLogger("myqueue")

PATIENCE_S = 5.0  # with a write manager that does not answer; the query itself does not need it


class Cursors:
    """A stream takes no leases: which partitions it reads, Spark decides. So its commits name no lease, and a partition
    that an ordinary member of the same consumer has on lease is left to that member, with a line in the log.
    """

    def __init__(self, transport: Transport, name: str) -> None:
        self._transport = transport
        self._name = name
        self._consumers: dict[tuple[str, str], int] = {}  # by topic and its id
        self._committed: dict[tuple[str, str], dict[int, int]] = {}
        self._gone: set[tuple[str, str]] = set()  # another topic of that name is not to get their offsets

    def commit(self, progress: Progress) -> None:
        """Everything below these offsets is processed. May be repeated, and may come late."""
        for topic, topic_id in sorted(progress.topic_ids.items()):
            offsets = progress.of_topic(topic)
            if not offsets or (topic, topic_id) in self._gone or self._committed.get((topic, topic_id)) == offsets:
                continue
            try:
                self._commit(topic, topic_id, dict(offsets))
            except (ConsumerNotFound, TopicNotFound) as error:
                self._gone.add((topic, topic_id))
                logger.warning("consumer %r is gone from topic %r: %s", self._name, topic, error)
            except MyQueueError as error:
                if not error.retriable:
                    raise
                logger.warning("the cursors of consumer %r follow later: %s", self._name, error)
                return  # the query must not wait for as long as this once for every topic
            else:
                self._committed[topic, topic_id] = offsets

    def _commit(self, topic: str, topic_id: str, offsets: dict[int, int]) -> None:
        consumer_id = self._consumer_id(topic, topic_id)
        while offsets:
            body = {"offsets": [{"partition_id": p, "offset": offset} for p, offset in sorted(offsets.items())]}
            try:
                self._transport.call(routes.COMMIT, path={"consumer_id": consumer_id}, body=body, deadline_s=PATIENCE_S)
            except (StaleCommit, StaleLease, PastEnd) as error:
                # All or none of a commit is carried out: the others go without this one.
                partition = error.details.get("partition_id")
                if partition not in offsets:
                    raise
                del offsets[partition]
                if not isinstance(error, StaleCommit):
                    logger.warning("consumer %r, %s/%s: not committed: %s", self._name, topic, partition, error)
            else:
                return

    def _consumer_id(self, topic: str, topic_id: str) -> int:
        known = self._consumers.get((topic, topic_id))
        if known is None:
            body = {"topic": topic, "name": self._name, "from": "earliest"}
            try:
                registered = self._transport.call(routes.REGISTER_CONSUMER, body=body, deadline_s=PATIENCE_S).body
            except RegistrationConflict as error:
                raise RegistrationConflict(
                    f"option consumer: {self._name!r} is there on topic {topic!r} with other settings, perhaps for one "
                    "partition only; choose another name"
                ) from error
            known = self._consumers[topic, topic_id] = registered["consumer_id"]
        return known
