"""The class names of earlier message queues: thin wrappers of Producer and Consumer.

Ids that the caller chooses become names: the same id comes back to the same registration.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from myqueue.cluster_url import base_url
from myqueue.consumer import Consumer
from myqueue.message import Message, Receipt, Value
from myqueue.producer import Producer
from myqueue.simple_api import SimpleApi
from myqueue.start_position import Start
from myqueue.transport import DEFAULT_RETRY, DEFAULT_TIMEOUTS, RetryPolicy, Timeouts, Transport


@dataclass(frozen=True, slots=True)
class Properties:
    """The cluster's address, and the caller's id.

    >>> Properties("localhost:8080", id=1234, topic="orders")
    Properties(load_balancer='localhost:8080', id=1234, topic='orders')
    """

    load_balancer: str | None  # None: what MYQUEUE_URL says, or http://localhost
    id: int | str
    topic: str | None = None


@dataclass(frozen=True, slots=True)
class ProducerRecord:
    """A message and the topic it goes to: `ProducerRecord("orders", "one coffee")`."""

    topic: str
    message: Value


class MyProducer:
    """Sends records to any topic and waits for each; registers with a topic on first use.

        producer = MyProducer(Properties("localhost", id=1234))
        producer.send(ProducerRecord("orders", "one coffee"))

    or, with topics and an address (without one: MYQUEUE_URL): `MyProducer(["orders", "bills"], "localhost")`.
    """

    def __init__(self, source: Properties | Sequence[str] | str, broker: str | None = None) -> None:
        self._address, self._name, self._topics = _resolve(source, broker)
        self._producers: dict[str, Producer] = {}

    def register(self) -> dict[str, int]:
        """Registers with every topic that is known so far; the producer's id in each."""
        return {topic: self._producer(topic).producer_id for topic in self._topics}

    def send(self, record: ProducerRecord) -> Receipt:
        return self._producer(record.topic).send(record.message).result()

    def close(self) -> None:
        for producer in self._producers.values():
            producer.close()
        self._producers.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _producer(self, topic: str) -> Producer:
        if topic not in self._producers:
            self._producers[topic] = Producer(self._address, topic, self._name)
        return self._producers[topic]


class MyConsumer:
    """Reads one topic or several in turn.

        consumer = MyConsumer(Properties("localhost", id=7, topic="orders"))
        consumer.register()
        message = consumer.get_message()          # None when there is nothing to read

    or, with topics and an address (without one: MYQUEUE_URL): `MyConsumer(["orders", "bills"], "localhost")`.
    It sees what comes after it has registered; `start="earliest"` reads from the beginning.
    """

    def __init__(
        self, source: Properties | Sequence[str] | str, broker: str | None = None, start: Start = "latest"
    ) -> None:
        self._address, self._name, self._topics = _resolve(source, broker)
        if not self._topics:
            raise ValueError("a consumer needs at least one topic")
        self._start = start
        self._consumers: list[Consumer] = []
        self._next = 0

    def register(self) -> dict[str, int]:
        """The consumer's id in each topic. The first `get_message` registers, too."""
        for topic in self._topics[len(self._consumers) :]:
            self._consumers.append(Consumer(self._address, topic, self._name, start=self._start))
        return {consumer.topic: consumer.consumer_id for consumer in self._consumers}

    def get_message(self) -> Message | None:
        """The next message of the topics in turn, empty ones skipped; None when all are empty."""
        self.register()
        for _ in self._consumers:
            consumer = self._consumers[self._next]
            self._next = (self._next + 1) % len(self._consumers)
            if (message := consumer.get_message()) is not None:
                return message
        return None

    def close(self) -> None:
        for consumer in self._consumers:
            consumer.close()
        self._consumers.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ApiHandler(SimpleApi):
    """The simple API from Python: one method per call, each returns the response's JSON.

        api = ApiHandler("localhost")
        api.create_topic("orders")
        producer_id = api.register_producer("orders")["producer_id"]
        api.produce("orders", producer_id, "one coffee")      # {"status": "success", "partition_id": 0, "offset": 0}

    Failures raise the errors of `myqueue`; `consume` returns None when there is nothing to read.
    """

    def __init__(
        self, address: str | None = None, *, retry: RetryPolicy = DEFAULT_RETRY, timeouts: Timeouts = DEFAULT_TIMEOUTS
    ) -> None:
        super().__init__(Transport(address, timeouts=timeouts, retry=retry))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _resolve(source: Properties | Sequence[str] | str, broker: str | None) -> tuple[str, str | None, list[str]]:
    """Address, name and topics of either form of arguments."""
    if isinstance(source, Properties):
        return base_url(source.load_balancer, "load_balancer"), str(source.id), [source.topic] if source.topic else []
    return base_url(broker, "broker"), None, [source] if isinstance(source, str) else list(source)
