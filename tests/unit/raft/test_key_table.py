"""The compact key table does what an ordered dict did."""

import tracemalloc
from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.raft.key_table import KeyTable, SeenKey

WINDOWS = st.integers(1, 40)
# Few keys, so that they come again, or many, so that the table grows and keys leave it.
KEYS = st.integers(0, 12) | st.integers(0, 400)
PUTS = st.lists(st.tuples(KEYS, st.integers(0, (1 << 32) - 1)), max_size=300)


def key_of(number: int) -> bytes:
    return number.to_bytes(16, "little")


class KeyModel:
    def __init__(self, window: int) -> None:
        self._window = window
        self.keys: OrderedDict[bytes, SeenKey] = OrderedDict()

    def put(self, key: bytes, crc: int, offset: int) -> None:
        self.keys[key] = SeenKey(crc, offset)
        self.keys.move_to_end(key)
        while len(self.keys) > self._window:
            self.keys.popitem(last=False)

    def packed(self) -> bytes:
        return b"".join(
            key + crc.to_bytes(4, "little") + offset.to_bytes(8, "little") for key, (crc, offset) in self.keys.items()
        )


def assert_alike(table: KeyTable, model: KeyModel) -> None:
    assert len(table) == len(model.keys)
    assert table.packed() == model.packed()
    for number in range(401):
        assert table.get(key_of(number)) == model.keys.get(key_of(number))


@given(WINDOWS, PUTS, st.sampled_from([1, (1 << 32) - 20, (1 << 32) - 1]))
def test_the_last_keys_are_kept_in_order_of_their_last_put(
    window: int, puts: list[tuple[int, int]], first_number: int
) -> None:
    """Also when the numbers of the records run out."""
    table, model = KeyTable(window, first_number), KeyModel(window)
    for offset, (number, crc) in enumerate(puts):
        table.put(key_of(number), crc, offset)
        model.put(key_of(number), crc, offset)
        assert table.get(key_of(number)) == SeenKey(crc, offset)
    assert_alike(table, model)


@given(WINDOWS, PUTS, PUTS)
def test_a_loaded_table_goes_on_like_the_one_it_came_from(
    window: int, before: list[tuple[int, int]], after: list[tuple[int, int]]
) -> None:
    first, second, model = KeyTable(window), KeyTable(window), KeyModel(window)
    for offset, (number, crc) in enumerate(before):
        first.put(key_of(number), crc, offset)
        model.put(key_of(number), crc, offset)
    packed = first.packed()
    second.put(key_of(500), 0, 0)
    second.load(packed)
    for offset, (number, crc) in enumerate(after, 1 << 40):
        for each in (first, second, model):
            each.put(key_of(number), crc, offset)
        assert first.packed() == second.packed() == model.packed()
    assert_alike(first, model)
    assert_alike(second, model)


def test_packed_keys_do_not_change_with_the_table() -> None:
    table = KeyTable(10)
    table.put(key_of(1), 2, 3)
    packed = table.packed()
    copy = bytes(bytearray(packed))
    for number in range(100):
        table.put(key_of(number), 4, number)
    assert packed == copy


def test_a_smaller_window_counts_from_the_next_key_on() -> None:
    large, small = KeyTable(10), KeyTable(3)
    for number in range(10):
        large.put(key_of(number), 0, number)
    small.load(large.packed())
    assert small.get(key_of(0)) == SeenKey(0, 0)
    small.put(key_of(10), 0, 10)
    assert len(small) == 3
    assert [number for number in range(11) if small.get(key_of(number))] == [8, 9, 10]


def test_one_key_again_and_again_takes_no_room() -> None:
    table = KeyTable(1000)
    table.put(key_of(0), 0, 0)
    tracemalloc.start()
    try:
        for offset in range(20_000):
            table.put(key_of(1), 0, offset)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 10_000
    assert table.get(key_of(0)) == SeenKey(0, 0)


@pytest.mark.parametrize("written", [20_000, 50_000])
def test_a_key_takes_less_than_60_bytes(written: int) -> None:
    tracemalloc.start()
    try:
        table = KeyTable(20_000)
        for number in range(written):
            table.put(key_of(number), number, number << 32)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(table) == 20_000
    assert taken / len(table) < 60


@pytest.mark.parametrize("use", [lambda table: table.put(b"short", 0, 0), lambda table: table.load(bytes(27))])
def test_what_is_not_a_whole_record_is_refused(use: Any) -> None:
    with pytest.raises(ValueError, match="key"):
        use(KeyTable(1))
