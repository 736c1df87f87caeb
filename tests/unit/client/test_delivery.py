"""What `send` returns: awaited, called back, and timed out as an error of the library."""

import asyncio
import pickle
import sys
import threading
from copy import copy

import pytest

from myqueue import Deliveries, Delivery, DeliveryTimeout, InvalidRequest, MyQueueError, Producer, Receipt, Span
from myqueue.background_errors import BackgroundErrors
from myqueue.delivery import BatchResult
from tests.unit.client.failing_appends import appends, is_append
from tests.unit.client.memory_cluster import MemoryCluster
from tests.unit.client.scripted_server import Reply, ScriptedServer, Seen, Step, failure
from tests.waiting import until


class Gate:
    """Appends wait for it."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.cluster = cluster
        self.open = threading.Event()

    def __call__(self, seen: Seen) -> Step:
        if is_append(seen):
            self.open.wait(10)
        return self.cluster(seen)


def test_a_delivery_is_two_references() -> None:
    assert sys.getsizeof(Delivery(BatchResult("t"), 0)) <= sys.getsizeof((None, None))


def test_a_timeout_is_an_error_of_the_library_and_of_python(server: ScriptedServer, cluster: MemoryCluster) -> None:
    server.answer = gate = Gate(cluster)
    with Producer(server.url, topic="orders") as producer:
        delivery = producer.send("a")
        for wait in (delivery.result, producer.flush):
            with pytest.raises(TimeoutError) as caught:
                wait(0.05)
            assert isinstance(caught.value, MyQueueError)
            assert (caught.value.retriable, caught.value.outcome) == (True, "unknown")
        gate.open.set()
        delivery.result(5)
    assert str(copy(caught.value)) == str(caught.value)
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), DeliveryTimeout)


def test_deliveries_are_awaited(producer: Producer) -> None:
    async def send() -> tuple[Receipt, list[Receipt], list[Span]]:
        first = await producer.send("a")
        several = await asyncio.gather(*[producer.send(value) for value in "bcd"])
        return first, several, await producer.send_many(["e", "f"])

    first, several, many = asyncio.run(send())
    assert first == Receipt("orders", 0, 0)
    assert [receipt.offset for receipt in several] == [1, 2, 3]
    assert many == [Span(0, 4, 2)]


def test_an_awaited_failure_is_raised_and_counts_as_seen(server: ScriptedServer, cluster: MemoryCluster) -> None:
    server.answer = appends(cluster, Reply(400, failure(400, 40001, "refused", outcome="not_written")))

    async def send(producer: Producer) -> None:
        with pytest.raises(InvalidRequest, match="refused"):
            await producer.send("a")

    with Producer(server.url, topic="orders") as producer:
        asyncio.run(send(producer))
        producer.flush(5)


def test_a_task_that_is_cancelled_waits_no_more_and_the_others_do(
    server: ScriptedServer, cluster: MemoryCluster
) -> None:
    server.answer = gate = Gate(cluster)

    async def send(producer: Producer) -> Receipt:
        delivery = producer.send("a")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(asyncio.ensure_future(_receipt(delivery))), 0.05)
        impatient = asyncio.ensure_future(_receipt(delivery))
        other = asyncio.ensure_future(_receipt(delivery))
        await asyncio.sleep(0)
        impatient.cancel()
        gate.open.set()
        with pytest.raises(asyncio.CancelledError):
            await impatient
        return await other

    with Producer(server.url, topic="orders") as producer:
        assert asyncio.run(send(producer)).offset == 0


async def _receipt(delivery: Delivery) -> Receipt:
    return await delivery


def test_a_loop_that_is_gone_disturbs_nobody(server: ScriptedServer, cluster: MemoryCluster) -> None:
    server.answer = gate = Gate(cluster)

    async def give_up(delivery: Delivery) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_receipt(delivery), 0.05)

    with Producer(server.url, topic="orders") as producer:
        delivery = producer.send("a")
        asyncio.run(give_up(delivery))
        gate.open.set()
        assert delivery.result(5).offset == 0


def test_callbacks_run_once_before_and_after_the_outcome(server: ScriptedServer, cluster: MemoryCluster) -> None:
    server.answer = gate = Gate(cluster)
    called: list[object] = []
    with Producer(server.url, topic="orders", batch_bytes=1) as producer:
        delivery = producer.send("a")
        many = producer.send_many(["b", "c"])

        def send_more(done: Delivery) -> None:
            called.append(done.result(0).offset)
            producer.send("from the callback")
            raise ValueError("a defect of the callback")

        delivery.add_done_callback(send_more)
        many.add_done_callback(lambda done: called.append(len(done)))
        assert called == []
        gate.open.set()
        producer.flush(5)
        until(lambda: sorted(map(str, called)) == ["0", "2"], within_s=5, what="both are called")
        delivery.add_done_callback(lambda done: called.append(done))
        many.add_done_callback(lambda done: called.append(done))
        assert called[2:] == [delivery, many]
        Deliveries([]).add_done_callback(called.append)
        assert len(called) == 5
    assert "from the callback" in cluster.messages


def test_callbacks_that_are_added_while_batches_complete_run_once(producer: Producer) -> None:
    called: list[int] = []
    for number in range(500):
        producer.send(str(number)).add_done_callback(lambda done, number=number: called.append(number))  # type: ignore[misc]
    producer.flush(20)
    until(lambda: len(called) == 500, within_s=5, what="all are called")
    assert sorted(called) == list(range(500))


def length(error: BaseException | None) -> int:
    """Of its traceback."""
    trace, found = None if error is None else error.__traceback__, 0
    while trace is not None:
        trace, found = trace.tb_next, found + 1
    return found


def test_an_error_that_is_raised_often_does_not_grow() -> None:
    """The messages of a batch share it, and a consumer raises the one that ends it with every call: each raise would
    add to its traceback, with the callers' variables."""
    result = BatchResult("orders")
    result.count = 50
    result.failed(InvalidRequest("no"))
    lengths = set()
    for index in range(50):
        for delivery in (Delivery(result, index), Deliveries([(result, index, 1)])):
            with pytest.raises(InvalidRequest) as caught:
                delivery.result(0)
            lengths.add(length(caught.value))
    assert max(lengths) < 10

    errors = BackgroundErrors(grace_s=0.0)
    errors.record(0, InvalidRequest("late"), 0.0)
    for fatal in (None, InvalidRequest("gone")):
        errors.fatal = fatal
        for now in range(50):
            with pytest.raises(InvalidRequest) as caught:
                raise_if_any(errors.overdue(now))
            assert length(caught.value) < 10


def raise_if_any(error: MyQueueError | None) -> None:
    if error is not None:
        raise error
