"""Mistakes that users make with the library, against the whole stack."""

from datetime import UTC, datetime

import pytest
import requests

from myqueue import (
    Admin,
    ApiHandler,
    Consumer,
    PartitionNotFound,
    Producer,
    Reader,
    Receipt,
    TopicNotFound,
)
from tests.waiting import until


def test_errors_name_what_was_probably_meant(url: str, topic_name: str) -> None:
    with Admin(url) as admin:
        admin.create_topic(topic_name, partitions=2)
        wrong = topic_name[:-1] + ("0" if topic_name[-1] != "0" else "1")
        with pytest.raises(TopicNotFound, match=f"^topic not found: '{wrong}'; did you mean '{topic_name}'[?]$"):
            admin.describe_topic(wrong)
        with pytest.raises(TopicNotFound, match=f"^topic not found: '{wrong}'"):
            Consumer(url, topic=wrong)
        with pytest.raises(PartitionNotFound, match=f"^partition not found: 7 of topic '{topic_name}'; .* are 0 to 1$"):
            Consumer(url, topic=topic_name, partition=7)


def test_a_consumer_starts_at_a_datetime(url: str, topic_name: str) -> None:
    with Producer(url, topic=topic_name) as producer:
        early = producer.send("early").result()
        until(lambda: datetime.now(UTC).timestamp() * 1000 > appended_ms(url, early) + 1)
        moment = datetime.now(UTC)
        producer.send("late", partition=early.partition).result()
    with Consumer(url, topic=topic_name, start=moment) as consumer:
        message = consumer.poll(timeout=10)
        assert message is not None
        assert message.text == "late"
        consumer.seek(early.partition, to=moment.replace(year=moment.year - 1))
        again = consumer.poll(timeout=10)
        assert again is not None
        assert again.text == "early"


def appended_ms(url: str, receipt: Receipt) -> int:
    """When it was appended, by the leader's clock."""
    address = f"{url}/v1/topics/{receipt.topic}/partitions/{receipt.partition}/messages"
    listed = requests.get(address, params={"offset": receipt.offset}, timeout=10).json()
    append_time: int = listed["messages"][0]["append_time"]
    return append_time


def test_clients_find_the_cluster_by_the_variable(url: str, topic_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MYQUEUE_URL", url)
    with Admin() as admin, ApiHandler() as api:
        admin.create_topic(topic_name)
        until(lambda: topic_name in api.list_topics()["topics"], within_s=10, what="the other client sees it")
    with Reader(topic=topic_name, offsets={0: 0}) as reader:
        assert reader.poll(0) is None
