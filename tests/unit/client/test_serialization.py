"""Values become bytes and come back, and what cannot says what it is."""

import sys
from types import ModuleType

import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from myqueue.message import Message
from myqueue.protocol.errors import MyQueueError, TooLarge
from myqueue.serialization import (
    SerializationError,
    arrow_deserializer,
    arrow_serializer,
    as_table,
    is_tabular,
    json_deserializer,
    json_serializer,
    pydantic_deserializer,
    pydantic_serializer,
    table_of,
    table_values,
)


class Order(BaseModel):
    item: str
    count: int


def message(value: bytes) -> Message:
    return Message("orders", value, None, 0, 0, 0)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(json_values)
def test_json_comes_back(value: object) -> None:
    try:
        data = json_serializer(value)
    except SerializationError:  # a lone surrogate has no form in UTF-8
        return
    assert json_deserializer(data) == value


def test_json_is_compact_utf8() -> None:
    assert json_serializer({"name": "Zoë", "n": [1, 2]}) == '{"name":"Zoë","n":[1,2]}'.encode()


@pytest.mark.parametrize("value", [object(), float("nan"), {1, 2}, "\ud800"])
def test_what_json_does_not_have_is_named_and_not_sent(value: object) -> None:
    with pytest.raises(SerializationError, match=f"type {type(value).__qualname__}") as error:
        json_serializer(value)
    assert isinstance(error.value, MyQueueError)
    assert error.value.outcome == "not_written"


@pytest.mark.parametrize("deserializer", [json_deserializer, arrow_deserializer, pydantic_deserializer(Order)])
@pytest.mark.parametrize("data", [b"", b"{item", b"\xff\xff\xff\xff\x08\x00\x00\x00", b"\xff" * 1000])
def test_bytes_of_another_form_are_shown(deserializer: object, data: bytes) -> None:
    assert callable(deserializer)
    with pytest.raises(SerializationError, match=f"{len(data)} bytes"):
        deserializer(data)


def test_pydantic_models_come_back() -> None:
    order = Order(item="tea", count=2)
    assert pydantic_deserializer(Order)(pydantic_serializer(order)) == order
    assert pydantic_deserializer(list[Order])(b'[{"item":"tea","count":2}]') == [order]


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(SerializationError, match="type dict is not a pydantic model"):
        pydantic_serializer({"item": "tea"})
    with pytest.raises(SerializationError, match=r"not a valid Order(.|\n)*count"):
        pydantic_deserializer(Order)(b'{"item":"tea"}')


@settings(max_examples=30)
@given(st.lists(st.binary(max_size=3000), max_size=40), st.integers(4000, 9000))
def test_every_value_of_a_table_is_within_the_limit(cells: list[bytes], limit: int) -> None:
    table = pa.table({"cell": pa.array(cells, pa.binary()), "number": pa.array(range(len(cells)), pa.int64())})
    values = list(table_values(table, limit))
    assert all(len(value) <= limit for value in values)
    assert table_of(values).equals(table)
    assert table_of(message(value) for value in values).equals(table)
    assert table_of(pa.table({"value": pa.array(values, pa.binary())})).equals(table)


def test_a_row_that_is_too_large_is_named() -> None:
    table = pa.table({"cell": [b"a", b"b", b"c" * 5000]})
    with pytest.raises(TooLarge, match="row 2 of the table"):
        list(table_values(table, 4000))


def test_slices_carry_the_categories_of_their_own_rows() -> None:
    names = [f"{number:050}" for number in range(1000)]
    table = pa.table({"name": pa.array(names).dictionary_encode()})
    values = list(table_values(table, 8000))
    assert max(map(len, values)) <= 8000
    assert table_of(values)["name"].to_pylist() == names


def test_ordered_categories_keep_their_order() -> None:
    sizes = pd.Categorical(["large", "small", "large"], categories=["small", "medium", "large"], ordered=True)
    back = table_of(table_values(pd.DataFrame({"size": sizes}))).to_pandas()
    assert list(back["size"].cat.categories) == ["small", "medium", "large"]
    assert back["size"].max() == "large"


def test_data_frames_and_record_batches_are_tables() -> None:
    frame = pd.DataFrame({"item": ["tea", "milk"], "count": [1, 2]}, index=pd.Index([7, 8], name="order"))
    pd.testing.assert_frame_equal(table_of(table_values(frame)).to_pandas(), frame)
    batch = pa.RecordBatch.from_pydict({"item": ["tea"]})
    assert arrow_deserializer(arrow_serializer(batch)).to_pylist() == [{"item": "tea"}]
    with pytest.raises(SerializationError, match="type list is not a table"):
        as_table([1])
    with pytest.raises(SerializationError, match="no form in Arrow"):
        as_table(pd.DataFrame({"mixed": [1, "two", object()]}))


def test_messages_whose_values_are_tables_already_make_one_table() -> None:
    part = pa.table({"item": ["tea"]})
    assert table_of([message(part), message(part)]).num_rows == 2


def test_columns_that_some_messages_lack_are_null() -> None:
    values = [arrow_serializer(pa.table({"a": [1]})), arrow_serializer(pa.table({"a": [2], "b": ["x"]}))]
    assert table_of(values).to_pylist() == [{"a": 1, "b": None}, {"a": 2, "b": "x"}]
    with pytest.raises(SerializationError, match="different schemas"):
        table_of([values[0], arrow_serializer(pa.table({"a": ["text"]}))])
    assert table_of([]).num_rows == 0


def test_pydantic_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from myqueue import serialization

    serialization._pydantic.cache_clear()
    monkeypatch.setitem(sys.modules, "pydantic", None)
    with pytest.raises(ImportError, match="pip install pydantic"):
        pydantic_deserializer(Order)
    with pytest.raises(ImportError, match="pip install pydantic"):
        pydantic_serializer(Order(item="tea", count=1))


def test_pandas_may_be_half_imported_by_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", ModuleType("pandas"))
    assert not is_tabular(["a"])
