"""Figures of a partition from what was read of it piece by piece: as exact as they say they are."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from db.stats import Figures
from myqueue.protocol.models import MAX_OFFSET, PartitionMeasure
from write_manager.stats import merged_figures, replaced_figures

NOW = datetime(2030, 1, 1, tzinfo=UTC)
TOPIC_ID = UUID("9f1d3c52-8d0a-4f6e-9a51-1b7f3f3f9c11")


def measure(
    start: int | None,
    end: int | None,
    size: int = 0,
    *,
    beginning: int = 0,
    log_end: int | None = None,
    times: tuple[int, int] | None = None,
    gaps: int = 0,
    duplicates: int = 0,
) -> PartitionMeasure:
    return PartitionMeasure(
        topic="t",
        topic_id=TOPIC_ID,
        partition_id=0,
        from_offset=start,
        to_offset=end,
        messages=0 if start is None or end is None else end - start - gaps + duplicates,
        payload_bytes=size,
        first_timestamp=times and times[0],
        last_timestamp=times and times[1],
        gaps=gaps,
        duplicates=duplicates,
        beginning_offset=beginning,
        end_offset=max(beginning, end or 0) if log_end is None else log_end,
    )


NOTHING_NEW = measure(None, None)


def after(*measures: PartitionMeasure) -> Figures:
    figures = None
    for number, each in enumerate(measures):
        figures = merged_figures(figures, each, NOW + timedelta(minutes=number))
    assert figures is not None
    return figures


def test_the_first_figures() -> None:
    assert after(measure(0, 10, 1000, times=(5, 7))) == Figures(0, 10, 10, 1000, True, 5, 7, 0, 0, None, NOW)
    assert after(measure(None, None, beginning=4)) == Figures(4, 4, 4, 0, True, None, None, 0, 0, None, NOW)


def test_figures_add_up_and_tell_the_rate() -> None:
    both = after(measure(0, 10, 1000, times=(5, 7)), measure(10, 40, 60, times=(1, 6)))
    assert both == Figures(0, 40, 40, 1060, True, 1, 7, 0, 0, 30.0, NOW + timedelta(minutes=1))


def test_nothing_new_is_no_growth() -> None:
    idle = after(measure(0, 10, 1000, times=(5, 7)), measure(None, None, log_end=12))
    assert idle == Figures(0, 10, 12, 1000, True, 5, 7, 0, 0, 0.0, NOW + timedelta(minutes=1))


def test_two_results_at_the_same_moment_keep_the_rate() -> None:
    known = after(measure(0, 10, 1), measure(10, 20, 1))
    assert merged_figures(known, measure(20, 30, 1), known.computed_at).rate_per_minute == 10


def test_retention_shrinks_bytes_in_proportion_and_says_so() -> None:
    cut = after(measure(0, 10, 1000, times=(5, 7)), measure(10, 20, 100, beginning=5))
    assert (cut.first_offset, cut.end_offset, cut.messages, cut.bytes, cut.bytes_exact) == (5, 20, 15, 600, False)


def test_what_is_gone_for_good_leaves_exact_figures_behind() -> None:
    cut = after(measure(0, 10, 1000, times=(5, 7)), measure(10, 20, 100, beginning=10, times=(8, 9)))
    assert (cut.first_offset, cut.bytes, cut.bytes_exact, cut.first_timestamp) == (10, 100, True, 8)
    empty = after(measure(0, 10, 1000, times=(5, 7)), measure(None, None, beginning=12))
    assert (empty.first_offset, empty.end_offset, empty.bytes, empty.bytes_exact) == (12, 12, 0, True)
    assert (empty.first_timestamp, empty.last_timestamp) == (None, None)


def test_gaps_and_duplicates_are_counted_within_and_between() -> None:
    found = after(measure(0, 10, 1, gaps=2, duplicates=1), measure(13, 20, 1, gaps=1))
    assert (found.gaps, found.duplicates) == (6, 1)


def test_what_retention_took_before_it_was_read_is_no_gap() -> None:
    assert after(measure(0, 10, 1), measure(15, 20, 1, beginning=15)).gaps == 0
    assert after(measure(0, 10, 1), measure(15, 20, 1, beginning=13)).gaps == 2


def test_a_job_that_starts_late_has_found_no_gap() -> None:
    late = after(measure(7, 10, 1))
    assert (late.first_offset, late.messages, late.gaps) == (7, 3, 0)


def test_an_audit_sets_everything_but_the_rate() -> None:
    known = after(measure(0, 10, 1), measure(12, 20, 1))
    truth = replaced_figures(known, measure(0, 20, 77, times=(1, 2)), NOW)
    assert truth == Figures(0, 20, 20, 77, True, 1, 2, 0, 0, 10.0, NOW)
    assert replaced_figures(None, measure(0, 20, 77, times=(1, 2)), NOW) == replace(truth, rate_per_minute=None)


def test_counts_stay_within_their_columns() -> None:
    huge = after(measure(0, 1, MAX_OFFSET, gaps=1), measure(MAX_OFFSET - 1, MAX_OFFSET, MAX_OFFSET))
    assert huge.bytes == MAX_OFFSET
    assert huge.gaps <= MAX_OFFSET


class Measured(RuleBasedStateMachine):
    """A partition that grows, loses its beginning, and is measured now and then, sometimes twice."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.beginning = 0
        self.read_to = 0
        self.figures: Figures | None = None
        self.last: PartitionMeasure | None = None
        self.now = NOW

    @rule(sizes=st.lists(st.integers(0, 1000), min_size=1, max_size=20))
    def append(self, sizes: list[int]) -> None:
        self.sizes += sizes

    @rule(data=st.data())
    def retain(self, data: st.DataObject) -> None:
        self.beginning = data.draw(st.integers(self.beginning, len(self.sizes)))

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        start = max(self.read_to, self.beginning)
        end = data.draw(st.integers(start, len(self.sizes)))
        if start == end:
            new = measure(None, None, beginning=self.beginning, log_end=len(self.sizes))
        else:
            size = sum(self.sizes[start:end])
            new = measure(start, end, size, beginning=self.beginning, log_end=len(self.sizes))
        self.last = new
        self.read_to = max(self.read_to, end)
        self._take(new)

    @precondition(lambda self: self.last is not None)
    @rule()
    def read_again(self) -> None:
        """A stretch that was counted counts no second time, even if retention came between."""
        assert self.last is not None
        known = self.figures
        self._take(self.last.model_copy(update={"beginning_offset": self.beginning, "end_offset": len(self.sizes)}))
        assert known is not None
        assert self.figures is not None
        assert self.figures.bytes <= known.bytes
        assert self.figures.gaps == 0

    @rule()
    def audit(self) -> None:
        """It counts as far as the query has read, so that the next batch goes on there."""
        if self.read_to > self.beginning:
            size = sum(self.sizes[self.beginning : self.read_to])
            whole = measure(self.beginning, self.read_to, size, beginning=self.beginning, log_end=len(self.sizes))
            self.figures = replaced_figures(self.figures, whole, self.now)
            assert self.figures.bytes_exact

    def _take(self, new: PartitionMeasure) -> None:
        self.now += timedelta(seconds=60)
        self.figures = merged_figures(self.figures, new, self.now)

    @invariant()
    def figures_are_what_they_say(self) -> None:
        figures = self.figures
        if figures is None:
            return
        assert 0 <= figures.first_offset <= figures.end_offset <= figures.log_end_offset <= len(self.sizes)
        assert figures.end_offset >= self.read_to
        assert (figures.gaps, figures.duplicates) == (0, 0)
        assert figures.rate_per_minute is None or figures.rate_per_minute >= 0
        truth = sum(self.sizes[figures.first_offset : figures.end_offset])
        if figures.bytes_exact:
            assert figures.bytes == truth
        assert figures.bytes >= 0
        if self.beginning == 0:
            assert figures.bytes_exact


TestMeasured = Measured.TestCase
TestMeasured.settings = settings(stateful_step_count=25)
