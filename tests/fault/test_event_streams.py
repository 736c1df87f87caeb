"""Event streams while processes die: nothing is missing and nothing comes twice, at whichever server a client reads."""

import threading
from http.client import HTTPException

import pytest

from tests.calls import Calls
from tests.cluster import READ_MANAGERS, Cluster
from tests.event_client import EventClient, StreamEnded
from tests.waiting import until

MESSAGES = 400

pytestmark = pytest.mark.timeout(120)


class Reader:
    """Comes back with the id of the last event, as an EventSource does, until it has everything."""

    def __init__(self, calls: Calls, topic: str) -> None:
        self._url, self._path = calls.url, f"/v1/topics/{topic}/events"
        self.values: list[str] = []
        self.streams = 0
        self.problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        at: str | None = None
        try:
            while len(self.values) < MESSAGES:
                with EventClient(self._url, self._path, resume=at, from_="earliest") as stream:
                    if stream.status in (502, 503, 504):
                        continue
                    self.streams += 1
                    try:
                        stream.start()
                        while len(self.values) < MESSAGES:
                            event = stream.next(within_s=30)
                            assert event.kind == "message", event
                            self.values.append(event.data["value"])
                            at = event.event_id
                    except (StreamEnded, OSError, HTTPException):
                        at = stream.last_event_id or at
        except BaseException as error:  # noqa: BLE001 the test reports it
            self.problem = error

    def join(self) -> None:
        self._thread.join(90)
        assert self.problem is None, self.problem
        assert not self._thread.is_alive(), f"{len(self.values)} of {MESSAGES} messages"


@pytest.mark.slow
def test_brokers_and_read_managers_die_while_clients_read(cluster: Cluster, calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name, 3)
    readers = [Reader(calls, topic_name) for _ in range(4)]
    faults = {
        100: lambda: cluster.kill("broker-1"),
        200: lambda: cluster.kill(READ_MANAGERS[0]),
        300: lambda: cluster.kill("broker-2"),
    }
    producer = calls.producer(topic_name)
    for number in range(MESSAGES):
        if number in faults:
            faults[number]()
        # A repetition under the same key is the same message.
        key = {"Idempotency-Key": f"m-{number}"}

        def is_stored(number: int = number, key: dict[str, str] = key) -> bool:
            return calls.produce(topic_name, producer, str(number), key, partition_id=number % 3).status_code == 200

        until(is_stored, within_s=20, what=f"message {number} is stored")
    for reader in readers:
        reader.join()
        assert sorted(map(int, reader.values)) == list(range(MESSAGES))
        for partition_id in range(3):
            of_one = [int(value) for value in reader.values if int(value) % 3 == partition_id]
            assert of_one == sorted(of_one), "each partition in its order"
    assert sum(reader.streams for reader in readers) > len(readers), "some had to come back"
