"""Request models: strict about types, names and unknown fields."""

import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from myqueue.protocol import models
from myqueue.protocol.json_bytes import bytes_from_json, bytes_to_json
from myqueue.protocol.limits import topic_name_problem

GOOD_PRODUCE = {"topic": "T1", "producer_id": 0, "message": "hello"}
TOPIC = {"topic": "T1", "topic_id": uuid.UUID(int=1)}


@pytest.mark.parametrize("name", ["T1", "a.b-c_d", "x" * 200, ".a", "_a"])
def test_topic_names(name: str) -> None:
    assert models.CreateTopic.model_validate({"name": name}).name == name


@pytest.mark.parametrize(
    "name", ["", "x" * 201, ".", "..", "a/b", "%2e", "\0", "é", "T1\n", "a b", "__x", "{{7*7}}", "';--"]
)
def test_bad_topic_names(name: str) -> None:
    assert topic_name_problem(name) is not None
    with pytest.raises(ValidationError):
        models.CreateTopic.model_validate({"name": name})


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (models.CreateTopic, {"name": "T", "partitions": True}),
        (models.CreateTopic, {"name": "T", "partitions": "5"}),
        (models.CreateTopic, {"name": "T", "partitions": 0}),
        (models.CreateTopic, {"name": "T", "partitions": 10**9}),
        (models.CreateTopic, {"name": "T", "partitions": 1.0}),
        (models.CreateTopic, {"name": "T", "extra": 1}),
        (models.CreateTopic, {}),
        (models.Produce, GOOD_PRODUCE | {"producer_id": -1}),
        (models.Produce, GOOD_PRODUCE | {"producer_id": 2**63}),
        (models.Produce, GOOD_PRODUCE | {"message": None}),
        (models.Produce, GOOD_PRODUCE | {"message": 5}),
        (models.Produce, GOOD_PRODUCE | {"message": {"base64": "?"}}),
        (models.Produce, GOOD_PRODUCE | {"message": {"base64": "AA==", "x": 1}}),
        (models.RegisterConsumer, {"topic": "T", "from": "middle"}),
        (models.RegisterConsumer, {"topic": "T", "from": {"offset": -1}}),
        (models.RegisterConsumer, {"topic": "T", "from": {"offset": 1, "timestamp": 1}}),
        (models.RegisterConsumer, {"topic": "T", "start": "earliest"}),
        (models.RegisterProducer, {"topic": "T", "name": ""}),
        (models.Consume, {"topic": "T", "consumer_id": "1_000"}),
        (models.Consume, {"topic": "T", "consumer_id": " 1"}),
        (models.Consume, {"topic": "T", "consumer_id": "+1"}),
        (models.Consume, {"topic": "T", "consumer_id": "1", "wait_ms": "-1"}),
    ],
)
def test_refused(model: type[BaseModel], body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        model.model_validate(body)


@pytest.mark.parametrize(
    ("name", "most", "row"),
    [
        ("partitions", 1000, {**TOPIC, "partition_id": 0, "beginning_offset": 0, "end_offset": 0}),
        ("topics", 10_000, {**TOPIC, "minute": 0, "messages": 0, "bytes": 0}),
        (
            "consumers",
            10_000,
            {"consumer_id": 0, "topic": "T1", "partition_id": 0, "cursor": 0, "end_offset": 0}
            | {"messages": 0, "bytes": 0, "seconds": 0},
        ),
    ],
)
def test_results_have_so_many_rows(name: str, most: int, row: dict[str, Any]) -> None:
    number, step = ("minute", 60_000) if name == "topics" else ("partition_id", 1)
    rows = [{**row, number: n * step} for n in range(most + 1)]
    batch = {"query_id": "q", "batch_id": 0}
    assert len(getattr(models.RunResults.model_validate({**batch, name: rows[:-1]}), name)) == most
    with pytest.raises(ValidationError, match=str(most)):
        models.RunResults.model_validate({**batch, name: rows})


@given(st.binary(max_size=100))
def test_bytes_survive_the_wire(value: bytes) -> None:
    assert bytes_from_json(bytes_to_json(value)) == value


@given(st.text(max_size=100))
def test_text_stays_text(value: str) -> None:
    try:
        encoded = value.encode()
    except UnicodeEncodeError:
        with pytest.raises(ValueError, match="surrogates"):
            bytes_from_json(value)
        return
    assert bytes_to_json(encoded) == value
