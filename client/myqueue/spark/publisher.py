"""Publishing: the driver copies what the tasks of a micro-batch have staged to where it belongs. Safe to repeat."""

from contextlib import closing
from functools import partial
from uuid import UUID

from myqueue.protocol.errors import IdempotencyConflict, MyQueueError, TopicNotFound
from myqueue.sequences import Stamp
from myqueue.simple_api import SimpleApi
from myqueue.spark.decisions import Decisions
from myqueue.spark.lanes import Lanes
from myqueue.spark.manifest import MicroBatch, Staged
from myqueue.spark.publishing import Step, Verdict, plan, stamped, verdict_of
from myqueue.spark.readiness import AGAIN, lasting, ready_staging
from myqueue.spark.sink_options import SinkOptions
from myqueue.spark.staged_reader import StagedReader
from myqueue.spark.topic_log import TopicLog
from myqueue.transport import Transport
from myqueue.wire import Wire

_LOST = "it cannot be completed; start the query with a new checkpointLocation"


def publish(options: SinkOptions, micro_batch: MicroBatch, entries: list[Staged]) -> None:
    """All of the micro-batch is in its topics, exactly once, when this returns. After an error it is to be repeated."""
    with closing(Transport(options.url)) as transport, closing(Wire(options.url)) as wire:
        staging = ready_staging(transport, options, micro_batch, entries)
        publisher = _Publisher(transport, micro_batch, staging)
        publisher.open(entries, AGAIN)
        decisions = Decisions(transport, staging, micro_batch, wire)
        decided = decisions.decide(entries)
        if decided is not None:
            publisher.open(decided, _LOST)
            publisher.publish(decided)
            decisions.done()


class _Publisher:
    def __init__(self, transport: Transport, micro_batch: MicroBatch, staging: TopicLog) -> None:
        self._transport = transport
        self._api = SimpleApi(transport)
        self._micro_batch = micro_batch
        self._staged = StagedReader(staging, micro_batch)
        self._opened: dict[UUID, tuple[TopicLog, int]] = {}  # with this query's producer in it

    def open(self, entries: list[Staged], advice: str) -> None:
        """The topics they go to; raises TopicNotFound with this advice if one is another by now."""
        for topic, topic_id in {(entry.topic, entry.topic_id) for entry in entries}:
            if topic_id in self._opened:
                continue
            try:  # first, because registering would make it
                log = lasting(partial(TopicLog, self._transport, topic), {topic_id})
            except TopicNotFound as error:
                raise self._deleted(topic, advice) from error
            if log.topic_id != topic_id:
                raise self._deleted(topic, advice)
            self._opened[topic_id] = log, self._api.register_producer(topic, self._micro_batch.producer)["producer_id"]

    def publish(self, entries: list[Staged]) -> None:
        """Partitions beside each other, each one's batches in order. All lanes are at about the same place of the
        manifest, so that what is read for one is there for the others."""
        with Lanes(self._transport.url) as lanes:
            numbers: dict[tuple[UUID, int], int] = {}
            for step in plan(entries):
                number = numbers.setdefault((step.target.topic_id, step.target.partition), len(numbers))
                lanes.put(number, partial(self._publish, step))
            lanes.finish()

    def _publish(self, step: Step, wire: Wire) -> None:
        (topic, topic_id, partition), staged, sequence = step
        log, producer_id = self._opened[topic_id]
        header, body = self._staged.read(wire, staged)
        try:
            log.append(wire, stamped(header, Stamp(producer_id, self._micro_batch.epoch, sequence)), body)
        except TopicNotFound as error:
            raise self._deleted(topic, _LOST) from error
        except MyQueueError as error:
            verdict = verdict_of(error)
            if verdict is Verdict.TAKEN:
                raise IdempotencyConflict(
                    f"{self._micro_batch}: partition {partition} of topic {topic!r} holds other messages of this"
                    " micro-batch. Its staging topic was deleted while it was being published, or the option topic was"
                    " changed; start the query with a new checkpointLocation"
                ) from error
            if verdict not in (Verdict.WRITTEN, Verdict.SUPERSEDED):
                raise

    def _deleted(self, topic: str, advice: str) -> TopicNotFound:
        return TopicNotFound(f"{self._micro_batch}: topic {topic!r} was deleted meanwhile; {advice}")
