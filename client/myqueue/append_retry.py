"""What a producer does after a failed attempt to append a batch. Pure."""

from enum import Enum

from myqueue.protocol import errors

# Hints to follow in a row without a pause; more of them means that the hints go in circles.
QUICK_RETRIES = 3

_WRONG_BROKER = (
    errors.NotLeader,
    errors.BrokerNotFound,
    errors.PartitionNotFound,
    errors.TopicNotFound,  # of a broker; only the routing says whether the topic is deleted
    errors.UpstreamFailed,
    errors.UpstreamTimeout,
    errors.Unavailable,
)
_SEQUENCE_ERRORS = (errors.SequenceGap, errors.IdempotencyConflict, errors.UnknownProducer)


class NextStep(Enum):
    RETRY = "retry"
    REROUTE = "reroute"  # look up the leader, then retry
    IN_ORDER = "in order"  # retry when the batches before it are decided
    NEW_EPOCH = "new epoch"  # retry under a new epoch: the batch is in no log
    FENCED = "fenced"  # a newer producer of this name exists; nothing more can be sent
    FAIL = "fail"


def next_step(error: errors.MyQueueError, maybe_written: bool, alone: bool = True) -> NextStep:
    """`maybe_written`: this attempt or an earlier one may have been carried out.

    `alone`: all batches before it were decided when it was sent. What it misses is then not on its way.
    """
    if isinstance(error, errors.ProducerFenced):
        return NextStep.FENCED
    if isinstance(error, errors.SequenceGap | errors.UnknownProducer):
        if not alone:
            return NextStep.IN_ORDER
        return NextStep.FAIL if maybe_written else NextStep.NEW_EPOCH
    if isinstance(error, errors.Forbidden):
        return NextStep.FAIL
    if isinstance(error, errors.Overloaded):
        return NextStep.RETRY
    if isinstance(error, (errors.GrantInvalid, *_WRONG_BROKER)):
        return NextStep.REROUTE
    return NextStep.RETRY if error.retriable else NextStep.FAIL


def log_disagrees(error: errors.MyQueueError) -> bool:
    """Whether the log knows the batch's stamp, or those before it, otherwise: later batches need a newer epoch."""
    return isinstance(error, _SEQUENCE_ERRORS)


def retries_at_once(error: errors.MyQueueError, failures: int) -> bool:
    """Whether the next attempt needs no pause, because the error contains what to change."""
    if failures > QUICK_RETRIES:
        return False
    return isinstance(error, errors.GrantInvalid | errors.UnknownProducer | errors.SequenceGap) or (
        isinstance(error, errors.NotLeader) and error.details.get("leader") is not None
    )
