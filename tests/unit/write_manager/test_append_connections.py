"""The append connection over real sockets: the write manager's end against the broker's, and against brokers that
hang, vanish, or send something else."""

import asyncio
import logging
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress

import pytest
import structlog
import uvloop
from prometheus_client import CollectorRegistry

from broker import append_connection
from broker.append_connection import AppendConnection
from myqueue.protocol import append_frames, internal
from myqueue.protocol.append_frames import AppendedOffsets
from myqueue.protocol.errors import DiskFull, InternalError, MyQueueError, NotLeader
from service.body_budget import BodyBudget
from service.calls import NoAnswer
from service.http_app import HttpApp
from service.listener import Listener
from service.request_observer import RequestObserver
from service.router import Router
from stack.local import free_port
from tests.collector import Defect, no_collector
from write_manager import append_connections
from write_manager.append_connections import AppendConnections

LOG = structlog.wrap_logger(None, wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
WITHIN_S = 10.0
SECRET = "s" * 16
SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: myqueue-append\r\n\r\n"

Respond = Callable[[bytes], Awaitable[AppendedOffsets]]


class Broker:
    """A listener with the broker's end of the connection; batches are answered as the test says."""

    def __init__(self, respond: Respond) -> None:
        self.made: list[AppendConnection] = []
        observer = RequestObserver(CollectorRegistry(), LOG)
        router = Router(LOG, observer, secret=SECRET)

        def factory(_: object) -> AppendConnection:
            self.made.append(AppendConnection(respond, observer, LOG))
            return self.made[-1]

        router.add_upgrade(internal.APPEND_CONNECTION, factory)
        self.port = free_port()
        self.endpoint = f"http://127.0.0.1:{self.port}"
        app = HttpApp(router, max_body_bytes=1000, bodies=BodyBudget(1000))
        self.listener = Listener(app, "127.0.0.1", self.port)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self.listener.start()
        await asyncio.sleep(0)
        try:
            async with asyncio.timeout(WITHIN_S):
                yield
        finally:
            await self.listener.stop(WITHIN_S)


@asynccontextmanager
async def scripted(
    script: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    """A broker's port that does what the script says with each connection; its endpoint."""
    handlers: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        handlers.add(task)
        try:
            await script(reader, writer)
        except (asyncio.CancelledError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        async with asyncio.timeout(WITHIN_S):
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in handlers:
            task.cancel()
        await asyncio.gather(*handlers)


async def switched(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(SWITCHED)


def run(play: Coroutine[None, None, None]) -> None:
    uvloop.run(play)


async def offset_of(batch: bytes) -> AppendedOffsets:
    return AppendedOffsets(int(batch) + 1, range(int(batch), int(batch) + 1))


async def until(look: Callable[[], object]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not look():
            await asyncio.sleep(0.01)


def test_many_batches_share_one_connection() -> None:
    async def play() -> None:
        broker = Broker(offset_of)
        async with broker.running():
            connections = AppendConnections(SECRET)
            answers = await asyncio.gather(
                *(connections.append(broker.endpoint, b"%d" % number, 5.0, "r") for number in range(200))
            )
            assert answers == [AppendedOffsets(number + 1, range(number, number + 1)) for number in range(200)]
            assert len(broker.made) == 1

    run(play())


def test_answers_come_in_any_order_and_a_stuck_batch_delays_no_other() -> None:
    async def play() -> None:
        released = asyncio.Event()

        async def respond(batch: bytes) -> AppendedOffsets:
            if batch == b"0":
                await released.wait()
            return await offset_of(batch)

        broker = Broker(respond)
        async with broker.running():
            connections = AppendConnections(SECRET)
            stuck = asyncio.create_task(connections.append(broker.endpoint, b"0", WITHIN_S, None))
            for number in range(1, 20):
                assert (await connections.append(broker.endpoint, b"%d" % number, 5.0, None)).offsets[0] == number
            assert not stuck.done()
            released.set()
            assert (await stuck).offsets == range(1)
            assert len(broker.made) == 1

    run(play())


def test_errors_arrive_as_their_classes_and_a_defect_is_unknown() -> None:
    raised = [NotLeader(details={"leader": 2}), DiskFull(outcome="not_written"), ZeroDivisionError()]

    async def respond(batch: bytes) -> AppendedOffsets:
        raise raised[int(batch)]

    async def play() -> None:
        broker = Broker(respond)
        async with broker.running():
            connections = AppendConnections(SECRET)
            with pytest.raises(NotLeader) as not_leader:
                await connections.append(broker.endpoint, b"0", 5.0, None)
            assert not_leader.value.details == {"leader": 2}
            with pytest.raises(DiskFull):
                await connections.append(broker.endpoint, b"1", 5.0, None)
            with pytest.raises(InternalError) as defect:
                await connections.append(broker.endpoint, b"2", 5.0, None)
            assert defect.value.outcome == "unknown"

    run(play())


@pytest.mark.parametrize("error", [DiskFull, Defect])
def test_a_refused_batch_leaves_the_brokers_memory_with_its_answer(error: type[Exception]) -> None:
    raised: list[weakref.ref[Exception]] = []

    async def respond(_: bytes) -> AppendedOffsets:
        refusal = error()
        raised.append(weakref.ref(refusal))
        raise refusal

    async def play() -> None:
        broker = Broker(respond)
        async with broker.running():
            connections = AppendConnections(SECRET)
            for _ in range(3):
                with pytest.raises(MyQueueError):
                    await connections.append(broker.endpoint, b"batch", 5.0, None)
            assert len(raised) == 3
            await until(lambda: not any(ref() for ref in raised))  # its traceback has the frames that hold the batch

    with no_collector():
        run(play())


def test_a_refused_batch_leaves_the_write_managers_memory_with_its_answer() -> None:
    async def respond(batch: bytes) -> AppendedOffsets:
        if batch == b"late":
            await asyncio.sleep(0.4)
        raise DiskFull

    async def play() -> None:
        broker = Broker(respond)
        async with broker.running():
            connections = AppendConnections(SECRET)
            nobody = f"http://127.0.0.1:{free_port()}"
            for endpoint, batch, expected in (
                (broker.endpoint, b"batch", DiskFull),
                (broker.endpoint, b"late", NoAnswer),
                (nobody, b"batch", NoAnswer),
            ):
                kind, error = await failure(connections, endpoint, batch)
                assert kind is expected
                await until(lambda error=error: error() is None)  # type: ignore[misc]

    with no_collector():
        run(play())


async def failure(
    connections: AppendConnections, endpoint: str, batch: bytes
) -> tuple[type[MyQueueError], weakref.ref[MyQueueError]]:
    try:
        await connections.append(endpoint, batch, 0.2, None)
    except MyQueueError as error:
        return type(error), weakref.ref(error)
    raise AssertionError("it was appended")


def test_large_batches_pass_while_little_of_them_is_taken_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append_connection, "MAX_IN_FLIGHT_BYTES", 1 << 20)
    monkeypatch.setattr(append_connections, "MAX_UNSENT_BYTES", 1 << 20)
    most = in_flight = 0

    async def respond(batch: bytes) -> AppendedOffsets:
        nonlocal most, in_flight
        in_flight += len(batch)
        most = max(most, in_flight)
        await asyncio.sleep(0.01)
        in_flight -= len(batch)
        return AppendedOffsets(1, range(len(batch)))

    async def play() -> None:
        broker = Broker(respond)
        async with broker.running():
            connections = AppendConnections(SECRET)
            answers = await asyncio.gather(
                *(connections.append(broker.endpoint, bytes(1 << 20), WITHIN_S, None) for _ in range(30))
            )
            assert [len(answer.offsets) for answer in answers] == [1 << 20] * 30
            assert most <= 4 << 20

    run(play())


def test_a_wrong_secret_is_not_written() -> None:
    async def play() -> None:
        broker = Broker(offset_of)
        async with broker.running():
            with pytest.raises(NoAnswer) as refused:
                await AppendConnections("x" * 16).append(broker.endpoint, b"1", 5.0, None)
            assert refused.value.outcome == "not_written"
            assert broker.made == []

    run(play())


def test_nobody_there_is_not_written() -> None:
    async def play() -> None:
        connections = AppendConnections(SECRET)
        for timeout_s in (0.0, 5.0):
            with pytest.raises(NoAnswer) as refused:
                await connections.append(f"http://127.0.0.1:{free_port()}", b"1", timeout_s, None)
            assert refused.value.outcome == "not_written"

    run(play())


def test_a_broker_that_accepts_but_does_not_answer_is_not_written_in_time() -> None:
    async def script(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read(-1)

    async def play() -> None:
        async with scripted(script) as endpoint:
            connections = AppendConnections(SECRET, connect_timeout_s=0.2)
            calls = [connections.append(endpoint, b"1", timeout_s, None) for timeout_s in (0.1, 5.0)]
            for refused in await asyncio.gather(*calls, return_exceptions=True):
                assert isinstance(refused, NoAnswer)
                assert refused.outcome == "not_written"

    run(play())


def test_a_broker_that_hangs_later_is_unknown_and_the_next_call_connects_anew() -> None:
    taken: list[asyncio.StreamWriter] = []
    ended: list[int] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken.append(writer)
        await switched(reader, writer)
        if len(taken) == 1:
            with suppress(ConnectionResetError):
                await reader.read(-1)
            ended.append(1)
            return
        while True:
            size = int.from_bytes(await reader.readexactly(4), "little")
            number = int.from_bytes((await reader.readexactly(size))[:4], "little")
            writer.write(append_frames.encode_answer(number, AppendedOffsets(8, range(7, 8))))

    async def play() -> None:
        async with scripted(script) as endpoint:
            connections = AppendConnections(SECRET)
            other = asyncio.create_task(connections.append(endpoint, b"0", 1.0, None))
            with pytest.raises(NoAnswer) as failed:
                await connections.append(endpoint, b"1", 0.2, None)
            assert failed.value.outcome == "unknown"
            assert (await connections.append(endpoint, b"2", 5.0, None)).offsets == range(7, 8)
            assert len(taken) == 2
            assert not other.done(), "it may still be answered"
            with pytest.raises(NoAnswer) as failed:
                await other
            assert failed.value.outcome == "unknown"
            await until(lambda: ended == [1])
            assert (await connections.append(endpoint, b"3", 5.0, None)).offsets == range(7, 8)
            assert len(taken) == 2

    run(play())


def test_a_late_answer_is_ignored_and_the_connection_kept() -> None:
    async def respond(batch: bytes) -> AppendedOffsets:
        await asyncio.sleep(0.4 if batch == b"0" else 0.01)
        return await offset_of(batch)

    async def play() -> None:
        broker = Broker(respond)
        async with broker.running():
            connections = AppendConnections(SECRET)
            late = asyncio.create_task(connections.append(broker.endpoint, b"0", 0.2, None))
            for number in range(1, 60):
                assert (await connections.append(broker.endpoint, b"%d" % number, 5.0, None)).offsets[0] == number
            with pytest.raises(NoAnswer) as failed:
                await late
            assert failed.value.outcome == "unknown"
            assert len(broker.made) == 1

    run(play())


@pytest.mark.parametrize(
    "sent", [b"", b"\xff" * 64, append_frames.encode_answer(0, AppendedOffsets(0, [1]))[:-3] + b"x"]
)
def test_when_the_connection_ends_or_is_not_understood_what_was_sent_is_unknown(sent: bytes) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await switched(reader, writer)
        await reader.readexactly(9)
        writer.write(sent)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def play() -> None:
        async with scripted(script) as endpoint:
            connections = AppendConnections(SECRET)
            calls = [connections.append(endpoint, b"batch", 60.0, None) for _ in range(5)]
            for failed in await asyncio.gather(*calls, return_exceptions=True):
                assert isinstance(failed, NoAnswer)
                assert failed.outcome == "unknown"

    run(play())


def test_a_broker_that_reads_nothing_more_is_not_written_once_too_much_is_unsent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(append_connections, "MAX_UNSENT_BYTES", 1 << 16)

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await switched(reader, writer)
        await asyncio.sleep(2 * WITHIN_S)

    async def play() -> None:
        async with scripted(script) as endpoint:
            connections = AppendConnections(SECRET)
            sent = [asyncio.create_task(connections.append(endpoint, bytes(4 << 20), 60.0, None)) for _ in range(8)]
            await asyncio.sleep(0.2)
            with pytest.raises(NoAnswer) as refused:
                await connections.append(endpoint, b"late", 0.3, None)
            assert refused.value.outcome == "not_written"
            for task in sent:
                task.cancel()
            await asyncio.gather(*sent, return_exceptions=True)

    run(play())


@pytest.mark.parametrize("sent", [b"\xff" * 64, b"\x06\x00\x00\x00\x01\x00\x00\x00\xff\x00", b"GET / HTTP/1.1\r\n\r\n"])
def test_a_malformed_request_ends_the_connection_and_no_other(sent: bytes) -> None:
    async def play() -> None:
        broker = Broker(offset_of)
        async with broker.running():
            connections = AppendConnections(SECRET)
            await connections.append(broker.endpoint, b"1", 5.0, None)
            reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
            writer.write(
                f"GET {internal.APPEND_CONNECTION.path} HTTP/1.1\r\nHost: x\r\nX-Myqueue-Secret: {SECRET}\r\n"
                "Connection: Upgrade\r\nUpgrade: myqueue-append\r\n\r\n".encode()
            )
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
            writer.write(sent)
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
            writer.close()
            await connections.append(broker.endpoint, b"2", 5.0, None)
            assert len(broker.made) == 2

    run(play())


def test_a_broker_that_stops_answers_what_it_has_taken() -> None:
    async def play() -> None:
        released = asyncio.Event()
        taken: list[bytes] = []

        async def respond(batch: bytes) -> AppendedOffsets:
            taken.append(batch)
            await released.wait()
            return await offset_of(batch)

        broker = Broker(respond)
        async with broker.running():
            connections = AppendConnections(SECRET)
            calls = [asyncio.create_task(connections.append(broker.endpoint, b"%d" % n, 9.0, None)) for n in range(3)]
            await until(lambda: len(taken) == 3)
            stopping = asyncio.create_task(broker.listener.stop(WITHIN_S))
            await asyncio.sleep(0.1)
            assert not stopping.done()
            released.set()
            assert [(await call).offsets[0] for call in calls] == [0, 1, 2]
            await stopping
            with pytest.raises(NoAnswer) as refused:
                await connections.append(broker.endpoint, b"4", 5.0, None)
            assert refused.value.outcome == "not_written"

    run(play())
