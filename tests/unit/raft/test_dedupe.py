"""Idempotent produce: what counts as new, as a repeat, as a mistake."""

from hypothesis import given
from hypothesis import strategies as st

from broker.raft.dedupe import AppliedDedupe, PendingDedupe, Problem, Repeat, check_stamp
from broker.raft.entry import Kind, LogEntry, Stamp
from myqueue.protocol.dedup_records import DedupRecord


def entry(
    index: int, base: int, count: int = 1, stamp: Stamp | None = None, marks: tuple[DedupRecord, ...] = ()
) -> LogEntry:
    return LogEntry(index, 1, Kind.MESSAGES, base, 0, count, stamp, marks, b"")


def key(number: int, crc: int = 7) -> DedupRecord:
    return DedupRecord(0, 0, crc, b"%016d" % number)


def table(keys: int = 100, producers: int = 100, batches: int = 3) -> PendingDedupe:
    return PendingDedupe(AppliedDedupe(keys, producers, batches))


def test_a_repeat_needs_the_same_content() -> None:
    pending = table()
    pending.applied.apply(entry(1, 10, 2, Stamp(1, 0, 0, crc=5)))
    assert pending.check(Stamp(1, 0, 0, crc=5), 2, ())[0] == Repeat(10)
    assert pending.check(Stamp(1, 0, 0, crc=6), 2, ())[0] is Problem.CONFLICT
    assert pending.check(Stamp(1, 0, 0, crc=5), 3, ())[0] is Problem.CONFLICT
    assert pending.check(Stamp(1, 0, 2, crc=5), 2, ())[0] is None


def test_sequences_have_no_gaps_and_epochs_do_not_go_back() -> None:
    pending = table()
    pending.applied.apply(entry(1, 0, 2, Stamp(1, 3, 0, crc=5)))
    assert pending.check(Stamp(1, 3, 3, crc=5), 1, ())[0] is Problem.GAP
    assert pending.check(Stamp(1, 3, 1, crc=5), 1, ())[0] is Problem.CONFLICT
    assert pending.check(Stamp(1, 2, 2, crc=5), 1, ())[0] is Problem.FENCED
    assert pending.check(Stamp(1, 4, 2, crc=5), 1, ())[0] is Problem.GAP
    assert pending.check(Stamp(1, 4, 0, crc=5), 1, ())[0] is None
    assert pending.check(Stamp(2, 0, 1, crc=5), 1, ())[0] is Problem.UNKNOWN_PRODUCER
    assert pending.check(Stamp(2, 0, 0, crc=5), 1, ())[0] is None


def test_batches_older_than_the_window_are_forgotten_not_written_again() -> None:
    pending = table(batches=2)
    for sequence in range(4):
        pending.applied.apply(entry(sequence + 1, sequence, 1, Stamp(1, 0, sequence, crc=5)))
    assert pending.check(Stamp(1, 0, 1, crc=5), 1, ())[0] is Problem.FORGOTTEN
    assert pending.check(Stamp(1, 0, 2, crc=5), 1, ())[0] == Repeat(2)


def test_sequences_wrap() -> None:
    pending = table()
    last = (1 << 32) - 2
    pending.applied.apply(entry(1, 0, 2, Stamp(1, 0, last, crc=5)))
    assert pending.check(Stamp(1, 0, 0, crc=5), 1, ())[0] is None
    assert pending.check(Stamp(1, 0, 1, crc=5), 1, ())[0] is Problem.GAP
    assert pending.check(Stamp(1, 0, last, crc=5), 2, ())[0] == Repeat(0)


def test_the_unapplied_tail_counts() -> None:
    pending = table()
    taken = entry(1, 4, 1, Stamp(1, 0, 0, crc=5), (key(1),))
    pending.add(taken)
    assert pending.check(Stamp(1, 0, 0, crc=5), 1, (key(1),)) == (Repeat(4), (Repeat(4),))
    assert pending.check(None, 1, (key(1, crc=8), key(2)))[1] == (Problem.CONFLICT, None)
    pending.applied.apply(taken)
    pending.settle(taken)
    assert not pending.keys
    assert not pending.producers
    assert pending.check(Stamp(1, 0, 0, crc=5), 1, (key(1),)) == (Repeat(4), (Repeat(4),))


def test_a_key_twice_in_one_batch_is_refused() -> None:
    assert table().check(None, 2, (key(1), key(1)))[1] == (None, Problem.CONFLICT)


@given(st.lists(st.integers(0, 30), max_size=200), st.integers(1, 10))
def test_keys_leave_in_log_order(numbers: list[int], window: int) -> None:
    dedupe = AppliedDedupe(window, 1, 1)
    written: list[bytes] = []
    for offset, number in enumerate(numbers):
        mark = key(number)
        dedupe.apply(entry(offset + 1, offset, marks=(mark,)))
        if mark.key in written:
            written.remove(mark.key)
        written.append(mark.key)
    kept = dedupe.snapshot().keys
    assert [kept[at : at + 16] for at in range(0, len(kept), 28)] == written[-window:]


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), max_size=60), st.integers(0, 60))
def test_a_table_restored_from_its_record_goes_on_alike(batches: list[tuple[int, int]], at: int) -> None:
    """Also when some of the log is still pending: leader and follower may stand at different places."""
    whole, second = AppliedDedupe(100, 3, 2), AppliedDedupe(100, 3, 2)
    sequences: dict[int, int] = {}
    offset = 0
    entries = []
    for number, (producer, count) in enumerate(batches):
        stamp = Stamp(producer, 0, sequences.get(producer, 0), crc=number)
        sequences[producer] = stamp.sequence + count
        entries.append(entry(number + 1, offset, count, stamp))
        offset += count
    for item in entries[:at]:
        whole.apply(item)
    second.load(whole.snapshot())
    for item in entries[at:]:
        whole.apply(item)
        second.apply(item)
    assert whole.snapshot() == second.snapshot()


@given(st.lists(st.integers(1, 3), min_size=1, max_size=20), st.data())
def test_every_batch_in_the_window_is_found_again(counts: list[int], data: st.DataObject) -> None:
    dedupe = AppliedDedupe(10, 10, 4)
    sequence = offset = 0
    made = []
    for index, count in enumerate(counts):
        item = entry(index + 1, offset, count, Stamp(1, 0, sequence, crc=index))
        assert check_stamp(dedupe.producers.get(1), item.stamp or Stamp(0, 0, 0, 0), count) is None
        dedupe.apply(item)
        made.append(item)
        sequence += count
        offset += count
    again = data.draw(st.sampled_from(made[-4:]))
    assert again.stamp is not None
    assert check_stamp(dedupe.producers[1], again.stamp, again.count) == Repeat(again.base_offset)
