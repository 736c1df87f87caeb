"""Flow to one follower."""

from hypothesis import given
from hypothesis import strategies as st

from broker.raft.progress import Mode, Progress


def test_a_probe_waits_for_its_answer_and_a_stream_does_not() -> None:
    progress = Progress(5, now=0)
    progress.sent(5, 100, now=0)
    assert progress.paused(4, 1000)
    assert progress.acknowledged(5, 1, now=1)
    assert progress.mode is Mode.STREAM
    for index in range(6, 10):
        assert not progress.paused(4, 1000)
        progress.sent(index, 100, now=1)
    assert progress.paused(4, 1000)
    progress.acknowledged(7, 1, now=2)
    assert not progress.paused(4, 1000)


def test_old_refusals_are_ignored() -> None:
    progress = Progress(9, now=0)
    progress.acknowledged(6, 1, now=0)
    assert not progress.refused(6, 3)
    assert progress.refused(8, 3)
    assert progress.next == 7


@given(st.lists(st.tuples(st.sampled_from(["sent", "ack", "refuse", "retry", "snapshot"]), st.integers(0, 20))))
def test_next_stays_above_match(moves: list[tuple[str, int]]) -> None:
    progress = Progress(10, now=0)
    for move, number in moves:
        if move == "sent" and not progress.paused(4, 1000):
            progress.sent(progress.next + number % 3, 10, now=0)
        elif move == "ack":
            progress.acknowledged(number, 3, now=0)
        elif move == "refuse":
            progress.refused(number, number - 1)
        elif move == "retry":
            progress.retry()
        elif move == "snapshot":
            progress.snapshot_sent(now=0)
        assert progress.next > progress.match
        assert progress.bytes_in_flight >= 0
