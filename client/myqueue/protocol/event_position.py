"""The id of an event: the position of its stream in every partition that it reads. Pure.

    1-9f86d081884c7d65-0-17.3.0.5

Version, the first 16 hex digits of the topic's id, the first partition, and the next offset of this partition and of
those after it. Whoever has it can read on without a gap and without a repetition, at any server.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from myqueue.protocol.errors import InvalidRequest, TopicReplaced
from myqueue.protocol.limits import MAX_PARTITIONS_PER_TOPIC

_VERSION = "1"
_TAG_CHARS = 16
_MAX_OFFSET = (1 << 63) - 1
_FORM = re.compile(r"1-([0-9a-f]{16})-([0-9]{1,5})-([0-9]{1,19}(?:\.[0-9]{1,19})*)\Z")


def topic_tag(topic_id: str) -> str:
    return topic_id.replace("-", "")[:_TAG_CHARS]


@dataclass(frozen=True, slots=True)
class EventPosition:
    topic_tag: str
    first_partition: int
    offsets: Sequence[int]

    def __str__(self) -> str:
        return f"{_VERSION}-{self.topic_tag}-{self.first_partition}-{'.'.join(map(str, self.offsets))}"

    @staticmethod
    def parse(text: str) -> "EventPosition":
        found = _FORM.match(text)
        offsets = [int(part) for part in found[3].split(".")] if found else []
        if found is None or len(offsets) > MAX_PARTITIONS_PER_TOPIC or max(offsets) > _MAX_OFFSET:
            raise InvalidRequest("the event id is not one that this server has sent; send it unchanged, or none")
        return EventPosition(found[1], int(found[2]), offsets)

    def offsets_in(self, topic_id: str, partitions: Sequence[int]) -> dict[int, int]:
        """The offsets of these partitions. Raises when the id is of another topic or does not cover them."""
        if self.topic_tag != topic_tag(topic_id):
            raise TopicReplaced()
        known = dict(enumerate(self.offsets, self.first_partition))
        missing = [p for p in partitions if p not in known]
        if missing:
            raise InvalidRequest(f"the event id is of a stream that did not read partition {missing[0]}")
        return {p: known[p] for p in partitions}
