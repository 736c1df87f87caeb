"""Three brokers whose connections to each other go through doors that tests shut: one for each way of each pair."""

import asyncio
import threading
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from tests.integration.broker_process import BrokerProcess, Registrar
from tests.integration.broker_trio import IDS, Trio

Way = tuple[int, int]  # from the broker that dials to the one that is dialled; frames travel this way

_CHUNK_BYTES = 1 << 16


class Doors:
    """A TCP proxy for each way. A shut door lets nothing through and keeps everybody waiting, as a cut cable does."""

    def __init__(self, ways: Iterable[Way]) -> None:
        self._loop = asyncio.new_event_loop()
        self._open: dict[Way, asyncio.Event] = {}
        self._targets: dict[Way, tuple[str, int]] = {}
        self._servers: dict[Way, asyncio.Server] = {}
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(list(ways)), self._loop).result(10)

    async def _listen(self, ways: list[Way]) -> None:
        for way in ways:
            self._open[way] = asyncio.Event()
            self._open[way].set()
            self._servers[way] = await asyncio.start_server(partial(self._pass, way), "127.0.0.1", 0)

    @property
    def ways(self) -> list[Way]:
        return list(self._open)

    def address(self, way: Way) -> str:
        return f"127.0.0.1:{self._servers[way].sockets[0].getsockname()[1]}"

    def lead_to(self, way: Way, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._targets[way] = host, int(port)

    def shut(self, *ways: Way) -> None:
        self._set(ways, opened=False)

    def open(self, *ways: Way) -> None:
        self._set(ways or tuple(self._open), opened=True)

    def _set(self, ways: Iterable[Way], *, opened: bool) -> None:
        async def turn() -> None:
            for way in ways:
                event = self._open[way]
                (event.set if opened else event.clear)()

        asyncio.run_coroutine_threadsafe(turn(), self._loop).result(5)

    async def _pass(self, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            await self._open[way].wait()
            there_reader, there_writer = await asyncio.open_connection(*self._targets[way])
            there = self._carry(way, reader, there_writer)
            back = self._carry(way, there_reader, writer)
            _, unfinished = await asyncio.wait(
                [asyncio.ensure_future(there), asyncio.ensure_future(back)], return_when=asyncio.FIRST_COMPLETED
            )
            for task in unfinished:
                task.cancel()
            there_writer.transport.abort()
        writer.transport.abort()

    async def _carry(self, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                await self._open[way].wait()
                writer.write(data)
                await writer.drain()

    def close(self) -> None:
        async def end() -> None:
            for server in self._servers.values():
                server.close()
            running = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


class RegistrarWithDoors(Registrar):
    """Tells each broker the addresses of its own doors to the others."""

    def __init__(self, doors: Doors) -> None:
        self._doors = doors
        super().__init__()

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        status, answer = super().answer(path, body)
        asking = body["broker_id"] if "broker_id" in body else int(path.split("/")[3])
        for peer in answer.get("peers", ()):
            way = asking, peer["broker_id"]
            if way[0] != way[1]:
                self._doors.lead_to(way, peer["raft_address"])
                peer["raft_address"] = self._doors.address(way)
        return status, answer


class LinkedTrio(Trio):
    def __init__(self, folder: Path, *more: str) -> None:
        self.doors = Doors((one, other) for one in IDS for other in IDS if one != other)
        self.registrar = RegistrarWithDoors(self.doors)
        self.brokers = {
            n: BrokerProcess(folder / f"broker-{n}", self.registrar.url, "--broker-id", str(n), *more) for n in IDS
        }

        self.partition_id = -1  # the one that the test at work writes to

    def start(self) -> "LinkedTrio":
        super().start()
        return self

    def next_partition(self) -> None:
        self.partition_id += 1
        self.create(self.partition_id)

    def cut_off(self, broker_id: int) -> None:
        """From both others, both ways."""
        self.doors.shut(*self.ways_of(broker_id))

    def cut_one_way(self, one: int, other: int) -> None:
        self.doors.shut((one, other))

    def heal(self) -> None:
        self.doors.open()

    def ways_of(self, broker_id: int) -> list[Way]:
        return [way for n in IDS if n != broker_id for way in ((n, broker_id), (broker_id, n))]

    def close(self) -> None:
        super().close()
        self.doors.close()
