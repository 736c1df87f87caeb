"""Messages that a query was to read and that are gone: an error, or a line in the log if that is to be passed over."""

import logging

from myqueue.protocol.errors import MyQueueError, OffsetOutOfRange, TopicNotFound
from myqueue.spark.offsets import Place, name_of

logger = logging.getLogger("myqueue")

_ADVICE = "set failOnDataLoss to false to go on without them"


class TopicLost(TopicNotFound):
    """The topic that was read is gone, whatever has its name by now."""


def retained(place: Place, start: int, end: int, beginning: int) -> MyQueueError:
    return OffsetOutOfRange(
        f"{name_of(place)}: messages {start} to {end - 1} are gone, retention has removed what is before {beginning}; "
        f"{_ADVICE}",
        details={"beginning_offset": beginning},
    )


def rewound(place: Place, start: int, end: int) -> MyQueueError:
    return OffsetOutOfRange(
        f"{name_of(place)} was read up to {start} and now ends at {end}: messages are gone; {_ADVICE}",
        details={"end_offset": end},
    )


def made_again(topic: str) -> TopicLost:
    return TopicLost(
        f"topic {topic!r} was deleted and made again: messages are gone; "
        "set failOnDataLoss to false to read the new one"
    )


def deleted(topic: str) -> TopicLost:
    return TopicLost(f"topic {topic!r} was deleted: messages are gone; {_ADVICE}")


def report(loss: MyQueueError, *, fail: bool) -> None:
    if fail:
        raise loss
    logger.warning("%s", loss)
