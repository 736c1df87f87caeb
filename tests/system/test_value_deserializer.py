"""Values that a producer's serializer has written and a consumer's deserializer reads, through the whole stack."""

import asyncio
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pydantic
import pytest

from myqueue import (
    Consumer,
    DeserializationError,
    Producer,
    arrow_deserializer,
    arrow_serializer,
    json_deserializer,
    json_serializer,
    pydantic_deserializer,
    pydantic_serializer,
)
from myqueue.aio import AsyncConsumer


class Order(pydantic.BaseModel):
    item: str
    count: int


@pytest.mark.parametrize(
    ("serializer", "deserializer", "values"),
    [
        (json_serializer, json_deserializer, [{"item": "tea", "count": 2}, None, "é", [1.5]]),
        (pydantic_serializer, pydantic_deserializer(Order), [Order(item="tea", count=2), Order(item="", count=-1)]),
        (arrow_serializer, arrow_deserializer, [pa.table({"n": [1, 2]}), pa.table({"n": pa.array([], pa.int64())})]),
    ],
    ids=["json", "pydantic", "arrow"],
)
def test_values_come_back_as_they_were_sent(
    url: str,
    topic_name: str,
    serializer: Callable[[Any], bytes],
    deserializer: Callable[[bytes], Any],
    values: list[Any],
) -> None:
    with Producer(url, topic=topic_name, value_serializer=serializer) as producer:
        for value in values:
            producer.send(value, partition=0).result(20)
    with Consumer(url, topic_name, "polls", start="earliest", value_deserializer=deserializer) as consumer:
        polled = [consumer.poll(20) for _ in values]
    assert [message.value for message in polled if message is not None] == values

    async def read() -> list[Any]:
        found: list[Any] = []
        async with AsyncConsumer(
            url, topic_name, "loops", start="earliest", value_deserializer=deserializer
        ) as consumer:
            while len(found) < len(values):
                found += [message.value for message in await consumer.poll_many(timeout=20)]
        return found

    assert asyncio.run(asyncio.wait_for(read(), 60)) == values


def test_a_name_goes_on_behind_a_message_that_cannot_be_read(url: str, topic_name: str) -> None:
    with Producer(url, topic=topic_name) as producer:
        for value in ("1", "{broken", "3"):
            producer.send(value, partition=0).result(20)

    def opened() -> Consumer:
        return Consumer(url, topic_name, "reader", start="earliest", value_deserializer=json_deserializer)

    with opened() as consumer:
        first = consumer.poll(20)
        assert first is not None
        assert first.value == 1
        with pytest.raises(DeserializationError, match=f"message 1 of partition 0 of topic '{topic_name}'"):
            consumer.poll(20)
    with opened() as consumer:
        last = consumer.poll(20)
        assert last is not None
        assert (last.value, last.offset) == (3, 2)
