"""Consumers of several topics of a cluster in memory."""

from typing import Any

from myqueue import Consumer, Message, RetryPolicy, TopicPartition
from myqueue.aio import AsyncConsumer
from tests.unit.client.memory_cluster import MemoryCluster, SeveralTopics
from tests.unit.client.scripted_server import ScriptedServer

QUICK = RetryPolicy(deadline_s=2.0, first_pause_s=0.001, longest_pause_s=0.01)
SOON_S = 0.05  # between two lists of topics
NAMES = ["orders", "bills", "mails"]


def at(topic: str, partition: int = 0) -> TopicPartition:
    return TopicPartition(topic, partition)


def several_topics(server: ScriptedServer) -> SeveralTopics:
    clusters = [MemoryCluster(topic=name, consumer_id=number) for number, name in enumerate(NAMES, 11)]
    server.answer = topics = SeveralTopics(*clusters)
    return topics


def consumer(server: ScriptedServer, topic: Any = NAMES, **settings: Any) -> Consumer:
    return Consumer(server.url, topic=topic, name="billing", start="earliest", **({"retry": QUICK} | settings))


def async_consumer(server: ScriptedServer, topic: Any = NAMES, **settings: Any) -> AsyncConsumer:
    return AsyncConsumer(server.url, topic=topic, name="billing", start="earliest", **({"retry": QUICK} | settings))


def rest(reader: Consumer) -> list[str]:
    found = []
    while (message := reader.poll(0)) is not None:
        found.append(f"{message.topic} {message.text}")
    return found


def texts(messages: list[Message]) -> list[str]:
    return [message.text for message in messages]
