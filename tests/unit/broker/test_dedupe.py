"""Which messages count as new."""

from hypothesis import given
from hypothesis import strategies as st

from broker.dedupe import NO_KEY, Again, Conflict, Known, Repeat, Write, decide
from myqueue.protocol.marks import Mark

KEYS = [bytes([n]) * 16 for n in range(1, 6)]


def mark(position: int, key: bytes, crc: int = 1) -> Mark:
    return Mark(position, 0, crc, key)


def test_messages_without_a_key_are_always_new() -> None:
    known: Known[str] = Known(10)
    assert decide(3, [mark(1, NO_KEY)], known) == [Write(0), Write(1), Write(2)]
    known.written(0, [mark(1, NO_KEY)])
    assert len(known) == 0


def test_a_key_that_was_written_names_its_offset() -> None:
    known: Known[str] = Known(10)
    known.written(40, [mark(2, KEYS[0])])
    (verdict,) = decide(1, [mark(0, KEYS[0])], known)
    assert isinstance(verdict, Repeat)
    assert (verdict.seen.number, verdict.seen.pending) == (42, None)


def test_a_key_with_another_message_is_a_conflict_and_the_rest_is_written() -> None:
    known: Known[str] = Known(10)
    known.written(0, [mark(0, KEYS[0])])
    assert decide(2, [mark(0, KEYS[0], crc=2), mark(1, KEYS[1])], known) == [Conflict(), Write(0)]


def test_a_key_on_its_way_is_known_until_it_is_refused() -> None:
    known: Known[str] = Known(10)
    known.expect("first append", [mark(0, KEYS[0])])
    (verdict,) = decide(1, [mark(0, KEYS[0])], known)
    assert isinstance(verdict, Repeat)
    assert verdict.seen.pending == "first append"
    known.refused([mark(0, KEYS[0])])
    assert decide(1, [mark(0, KEYS[0])], known) == [Write(0)]


def test_the_same_key_twice_in_one_batch() -> None:
    marks = [mark(0, KEYS[0]), mark(1, KEYS[0]), mark(2, KEYS[0], crc=9)]
    assert decide(3, marks, Known[str](10)) == [Write(0), Again(0), Conflict()]


@given(st.lists(st.sampled_from(KEYS), max_size=60), st.integers(1, 4))
def test_exactly_the_last_keys_by_position_are_known(keys: list[bytes], window: int) -> None:
    known: Known[str] = Known(window)
    order: list[bytes] = []
    for offset, key in enumerate(keys):
        if isinstance(decide(1, [mark(0, key)], known)[0], Write):
            known.written(offset, [mark(0, key)])
            order.append(key)
        remembered = order[-window:]
        assert len(remembered) == len(set(remembered))
        assert {k for k in KEYS if known.find(k)} == set(remembered)


@given(st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, 2)), min_size=1, max_size=30))
def test_a_batch_writes_each_new_key_once_in_rows_without_gaps(rows: list[tuple[bytes, int]]) -> None:
    known: Known[str] = Known(10)
    known.written(0, [mark(0, KEYS[0])])
    verdicts = decide(len(rows), [mark(i, key, crc) for i, (key, crc) in enumerate(rows)], known)
    assert [v.row for v in verdicts if isinstance(v, Write)] == list(range(sum(isinstance(v, Write) for v in verdicts)))
    written = [key for (key, _), verdict in zip(rows, verdicts, strict=True) if isinstance(verdict, Write)]
    assert len(written) == len(set(written))
    assert KEYS[0] not in written
