"""Where a log is cut, when a cut is worth it, and which clock may decide."""

from broker.retention import RetentionCut, SharedClock, is_worth_it


class Clocks:
    def __init__(self) -> None:
        self.wall_ms = 1_000_000
        self.monotonic_ms = 0

    def pass_ms(self, ms: int) -> None:
        self.wall_ms += ms
        self.monotonic_ms += ms


def test_a_clock_that_nobody_confirmed_does_not_count() -> None:
    clocks = Clocks()
    clock = SharedClock(lambda: clocks.wall_ms, lambda: clocks.monotonic_ms)
    assert not clock.agrees()
    clock.set_median(1_000_000)
    assert clock.agrees()
    clocks.pass_ms(10_000)
    assert clock.agrees()
    clocks.pass_ms(1)
    assert not clock.agrees(), "the median is too old"


def test_a_jump_is_noticed_before_anybody_says_so() -> None:
    clocks = Clocks()
    clock = SharedClock(lambda: clocks.wall_ms, lambda: clocks.monotonic_ms)
    for jump_ms, fine in ((5_000, True), (5_001, False), (-5_000, True), (-3_600_000, False)):
        clocks.wall_ms = 1_000_000 + clocks.monotonic_ms
        clock.set_median(clocks.wall_ms)
        clocks.wall_ms += jump_ms
        assert clock.agrees() == fine


def test_small_cuts_wait() -> None:
    cut = RetentionCut(5, 5, freed_bytes=100)
    assert is_worth_it(cut, size_bytes=1600, waited_s=0)
    assert not is_worth_it(cut, size_bytes=1601, waited_s=29)
    assert is_worth_it(cut, size_bytes=1 << 40, waited_s=30)
    assert is_worth_it(RetentionCut(5, 5, 16 << 20), size_bytes=1 << 40, waited_s=0)
    assert not is_worth_it(RetentionCut(5, 5, 0), size_bytes=1 << 40, waited_s=100)
