"""What follows from a failed attempt to append a batch. Pure."""

from enum import Enum

from myqueue.protocol import errors

# How often a hint is followed without a pause: more often means that the hints go in circles.
QUICK_RETRIES = 3

_WRONG_PLACE = (
    errors.NotLeader,
    errors.BrokerNotFound,
    errors.PartitionNotFound,
    errors.TopicNotFound,  # as the broker sees it; whether the topic is gone, the routing says
    errors.UpstreamFailed,
    errors.UpstreamTimeout,
    errors.Unavailable,
)
_DISAGREES = (errors.SequenceGap, errors.IdempotencyConflict, errors.UnknownProducer)


class Next(Enum):
    RETRY = "retry"
    REROUTE = "reroute"  # ask who leads, then retry
    NEW_EPOCH = "new epoch"  # stamp it again and retry: it is not a repetition
    FENCED = "fenced"  # nothing more can be sent
    FAIL = "fail"


def judge(error: errors.MyQueueError, maybe_written: bool) -> Next:
    """`maybe_written`: this attempt or an earlier one may have been carried out."""
    if isinstance(error, errors.ProducerFenced):
        return Next.FENCED
    if isinstance(error, errors.UnknownProducer):
        return Next.FAIL if maybe_written else Next.NEW_EPOCH
    if isinstance(error, errors.GrantInvalid | errors.Forbidden):
        return Next.REROUTE if isinstance(error, errors.GrantInvalid) else Next.FAIL
    if isinstance(error, errors.Overloaded):
        return Next.RETRY
    if isinstance(error, _WRONG_PLACE):
        return Next.REROUTE
    return Next.RETRY if error.retriable else Next.FAIL


def spends_epoch(error: errors.MyQueueError, maybe_written: bool) -> bool:
    """Whether what follows in the partition needs a newer epoch."""
    return maybe_written or isinstance(error, _DISAGREES)


def at_once(error: errors.MyQueueError, failures: int) -> bool:
    """Whether the next attempt need not wait: the error says what to do better."""
    if failures > QUICK_RETRIES:
        return False
    return isinstance(error, errors.GrantInvalid | errors.UnknownProducer) or (
        isinstance(error, errors.NotLeader) and error.details.get("leader") is not None
    )
