"""What there is: every partition of every topic, with the offsets that its leader says."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from uuid import UUID

from myqueue.protocol import routes
from myqueue.protocol.errors import NoLeader, NoTopics, TopicNotFound
from myqueue.spark.options import STAGED
from myqueue.transport import Transport

_AT_ONCE = 8  # topics asked for
_PATIENCE_S = 5.0  # with one of them


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """One partition of one topic; a topic that was deleted and made again is another one."""

    topic: str
    partition: int
    topic_id: UUID


@dataclass(frozen=True, slots=True)
class Extent:
    beginning: int
    end: int


def extents(transport: Transport) -> dict[Place, Extent]:
    """Of topics whose partitions all have a leader; without those in which Spark's streaming writes are staged."""
    try:
        names: list[str] = transport.call(routes.LIST_TOPICS).body["topics"]
    except NoTopics:
        return {}
    wanted = [name for name in names if not name.startswith(STAGED)]
    found: dict[Place, Extent] = {}
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="catalog") as pool:
        for extents_of_topic in pool.map(lambda name: _extents_of(transport, name), wanted):
            found |= extents_of_topic
    return found


def _extents_of(transport: Transport, topic: str) -> dict[Place, Extent]:
    try:
        body = transport.call(routes.TOPIC_OFFSETS, path={"topic": topic}, deadline_s=_PATIENCE_S).body
    except (TopicNotFound, NoLeader):
        return {}  # deleted since it was listed, or nobody can say: the figures of the others must not wait for it
    return {
        Place(topic, entry["partition_id"], UUID(body["topic_id"])): Extent(
            entry["beginning_offset"], entry["end_offset"]
        )
        for entry in body["partitions"]
    }
