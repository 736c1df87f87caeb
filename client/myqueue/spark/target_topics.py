"""The topics that a write goes to: opened once, and created if they are missing and may be."""

import logging

from myqueue.protocol import routes
from myqueue.protocol.errors import TopicExists, TopicNotFound
from myqueue.simple_api import SimpleApi
from myqueue.spark.manifest import MicroBatch
from myqueue.spark.options import WriteOptions
from myqueue.spark.staging import RESTART_QUERY
from myqueue.spark.topic_log import TopicLog
from myqueue.transport import Transport

logger = logging.getLogger("myqueue")

_CREATE_IT = (
    "it is not created again; create it to go on with an empty one, or start the query with a new checkpointLocation to"
    " write everything again"
)


class TargetTopics:
    """Of one task or commit. `producer` is a name of its own; `micro_batch` is None in a batch write."""

    def __init__(
        self, transport: Transport, options: WriteOptions, producer: str, micro_batch: MicroBatch | None = None
    ) -> None:
        self._transport = transport
        self._options = options
        self._producer = producer
        self._micro_batch = micro_batch
        self._opened: dict[str, TopicLog] = {}

    def open(self, topic: str) -> TopicLog:
        """Raises TopicNotFound if it is missing and may not be created."""
        if topic not in self._opened:
            try:
                self._opened[topic] = TopicLog(self._transport, topic)
            except TopicNotFound:
                self._opened[topic] = self._create(topic)
        return self._opened[topic]

    def _create(self, topic: str) -> TopicLog:
        if not self._options.create_topics:
            raise TopicNotFound(f"there is no topic {topic!r}, and option createTopics is false: create it first")
        if self._micro_batch is not None and self._micro_batch.number > 0:
            if self._options.topic is not None:
                raise deleted_topic(self._options, self._micro_batch, topic)
            logger.warning("%s creates topic %r, which is new or was deleted", self._micro_batch, topic)
        if self._options.partitions is None:
            # As every producer does: the cluster limits how many topics are created in this way.
            SimpleApi(self._transport).register_producer(topic, self._producer)
        else:
            try:
                body = {"partitions": self._options.partitions}
                self._transport.call(routes.PUT_TOPIC, path={"topic": topic}, body=body)
            except TopicExists:
                logger.debug("topic %r was created meanwhile", topic)
        return TopicLog(self._transport, topic)


def deleted_topic(
    options: WriteOptions, micro_batch: MicroBatch, topic: str, *, advice: str | None = None
) -> TopicNotFound:
    """Without advice, nothing of the micro-batch is published."""
    if advice is None:
        # The first micro-batch has seen to it that the topic of the option is there.
        advice = RESTART_QUERY if options.topic is None or micro_batch.number == 0 else _CREATE_IT
    return TopicNotFound(f"{micro_batch}: topic {topic!r} was deleted since the query began; {advice}")
