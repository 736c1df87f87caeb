"""Whose batches count: each once, and those of one query at a time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from myqueue.protocol.errors import AnotherQuery
from write_manager.stats import BatchDecision, LastBatch, decide_batch

numbers = st.integers(0, 5)
lasts = st.builds(LastBatch, st.just("q"), numbers, numbers)


@given(lasts, numbers, numbers)
def test_batches_of_a_query_go_forward_only(last: LastBatch, batch_id: int, part: int) -> None:
    beyond = (batch_id, part) > (last.batch_id, last.part)
    assert decide_batch(last, "q", batch_id, part) is (BatchDecision.ADD if beyond else BatchDecision.REPEATED)


@given(lasts, numbers, numbers)
def test_another_query_takes_over_at_its_very_beginning_only(last: LastBatch, batch_id: int, part: int) -> None:
    if (batch_id, part) == (0, 0):
        assert decide_batch(last, "anew", 0, 0) is BatchDecision.TAKE_OVER
        return
    with pytest.raises(AnotherQuery) as failure:
        decide_batch(last, "anew", batch_id, part)
    assert failure.value.details == {"query_id": "q", "batch_id": last.batch_id}


@given(numbers, numbers)
def test_a_job_without_figures_takes_any_query(batch_id: int, part: int) -> None:
    assert decide_batch(None, "q", batch_id, part) is BatchDecision.TAKE_OVER


@given(st.none() | lasts, st.none() | st.sampled_from(["q", "anew"]))
def test_what_was_not_newly_read_is_nobodys(last: LastBatch | None, query_id: str | None) -> None:
    assert decide_batch(last, query_id, None, 0) is BatchDecision.REFRESH
