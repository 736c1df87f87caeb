"""Which batches count, and whose query adds up a job's figures. Values in, a verdict out."""

from dataclasses import dataclass
from enum import Enum, auto

from myqueue.protocol.errors import AnotherQuery


class Verdict(Enum):
    REFRESH = auto()  # nothing was newly read
    ADD = auto()
    REPEATED = auto()  # it was taken before
    TAKE_OVER = auto()  # what was added up before counts no more


@dataclass(frozen=True, slots=True)
class Last:
    """The last batch that was taken."""

    query_id: str
    batch_id: int
    part: int


def judge(last: Last | None, query_id: str | None, batch_id: int | None, part: int) -> Verdict:
    """Batches of one query are taken in order: one that is not beyond the last was taken.

    Another query has a checkpoint of its own. Only its very first batch holds everything from the beginning; any later
    one goes on from what this job has never been told.
    """
    if batch_id is None:
        return Verdict.REFRESH
    if last is None:
        return Verdict.TAKE_OVER
    if query_id == last.query_id:
        return Verdict.REPEATED if (batch_id, part) <= (last.batch_id, last.part) else Verdict.ADD
    if (batch_id, part) == (0, 0):
        return Verdict.TAKE_OVER
    raise AnotherQuery(details={"query_id": last.query_id, "batch_id": last.batch_id})
