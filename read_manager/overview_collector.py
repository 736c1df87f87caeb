"""Collects the overview: at most once in INTERVAL_S and only while somebody asks or follows. All of them share it."""

import asyncio
import time
from collections.abc import Sequence

from db.standby import Standby
from myqueue.protocol import internal, routes
from myqueue.protocol.errors import RouteNotFound, Unavailable
from myqueue.protocol.models import Nothing
from myqueue.protocol.overview import ClusterState
from read_manager.broker_counters import BrokerCounters, parse_counters
from read_manager.cluster import write_manager
from read_manager.overview import Collected, KnownWriteManager, OverviewAssembler
from read_manager.write_manager_client import AsyncWriteManagerClient
from service.active_manager import Result, status_in
from service.async_calls import AsyncCaller
from service.calls import ConnectionRefused, NoAnswer
from service.error_encoding import JSON
from service.http_messages import HttpRequest, HttpResponse
from service.response_stream import ChunkSource
from service.router import Router
from service.server_sent_events import encode_event, encode_start, event_stream

INTERVAL_S = 1.0
TIMEOUT_S = 0.8  # of each process: one that hangs does not stretch the interval
OK = 200


class OverviewCollector:
    def __init__(
        self,
        caller: AsyncCaller,
        client: AsyncWriteManagerClient,
        write_manager_urls: Sequence[str],
        standby: Standby,
    ) -> None:
        self._caller = caller
        self._client = client
        self._write_manager_urls = write_manager_urls
        self._standby = standby
        self._assembler = OverviewAssembler()
        self._state: tuple[ClusterState, float] | None = None  # as last answered, and when
        self._names: dict[str, str] = {}  # of write managers, by address, as last known
        self._kept: tuple[bytes, float] | None = None
        self._collecting: asyncio.Task[bytes] | None = None
        self._followers = 0
        self._next: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._publishing: asyncio.Task[None] | None = None

    def add_routes(self, router: Router) -> None:
        router.add(routes.CLUSTER_OVERVIEW, self.overview, quiet=True)
        router.add(routes.CLUSTER_EVENTS, self.events)

    async def overview(self, request: HttpRequest) -> HttpResponse:
        request.parse_query(Nothing)
        return HttpResponse(OK, [("content-type", JSON)], await self.latest())

    async def events(self, request: HttpRequest) -> HttpResponse:
        request.parse_query(Nothing)
        return event_stream(self._follow())

    async def _follow(self) -> ChunkSource:
        """A client that reads slowly misses events and gets the newest one then: each is complete."""
        self._followers += 1
        try:
            sent = _event(await self.latest())
            yield encode_start() + sent
            while True:
                if self._publishing is None or self._publishing.done():
                    self._publishing = asyncio.create_task(self._publish())
                event = await asyncio.shield(self._next)
                if event != sent:  # the first one may be so new that it is published as the next one
                    sent = event
                    yield event
        finally:
            self._followers -= 1

    async def _publish(self) -> None:
        """One event for all streams, while there are any."""
        while self._followers:
            await asyncio.sleep(INTERVAL_S)
            published, self._next = self._next, asyncio.get_running_loop().create_future()
            try:
                published.set_result(_event(await self.latest()))
            except Exception as error:  # noqa: BLE001 the streams end with it, and their clients connect again
                published.set_exception(error)

    async def latest(self) -> bytes:
        """The overview as JSON, no older than INTERVAL_S. Concurrent calls share one collection."""
        now_s = asyncio.get_running_loop().time()
        if self._kept is not None and now_s - self._kept[1] < INTERVAL_S:
            return self._kept[0]
        if self._collecting is None or self._collecting.done():
            self._collecting = asyncio.create_task(self._collect(now_s))
        return await asyncio.shield(self._collecting)

    async def _collect(self, began_s: float) -> bytes:
        write_managers, (counters, refused) = await asyncio.gather(self._ask_write_managers(), self._ask_brokers())
        now_s = asyncio.get_running_loop().time()
        state, state_s = self._state or (None, now_s)
        overview = self._assembler.assemble(
            Collected(
                at_ms=time.time_ns() // 1_000_000,
                now_s=now_s,
                state=state,
                state_s=state_s,
                write_managers=write_managers,
                databases=self._standby.servers,
                timeline=self._standby.timeline,
                counters=counters,
                refused=refused,
            )
        )
        body = overview.model_dump_json().encode()
        self._kept = body, began_s
        return body

    async def _ask_brokers(self) -> tuple[dict[int, BrokerCounters], frozenset[int]]:
        """Those that the write manager knows, or knew."""
        try:
            state = await self._client.cluster_state(TIMEOUT_S)
            self._state = state, asyncio.get_running_loop().time()
        except (Unavailable, RouteNotFound):  # a write manager of an older release does not know the question
            pass
        brokers = [] if self._state is None else self._state[0]["brokers"]
        results = await asyncio.gather(*(self._call(each["endpoint"] + routes.METRICS.path) for each in brokers))
        answered = {broker["broker_id"]: result for broker, result in zip(brokers, results, strict=True)}
        counters = {
            broker_id: parse_counters(result.body.decode())
            for broker_id, result in answered.items()
            if not isinstance(result, NoAnswer) and result.status == OK
        }
        refused = frozenset(
            broker_id for broker_id, result in answered.items() if isinstance(result, ConnectionRefused)
        )
        return counters, refused

    async def _ask_write_managers(self) -> list[KnownWriteManager]:
        path = internal.WRITE_MANAGER_STATUS.path
        results = await asyncio.gather(*(self._call(url + path) for url in self._write_manager_urls))
        found = []
        for place, (url, result) in enumerate(zip(self._write_manager_urls, results, strict=True), 1):
            status = write_manager(status_in(result))
            if status.name is not None:
                self._names[url] = status.name
            name = self._names.get(url, f"write-manager-{place}")
            found.append(KnownWriteManager(name, url.removeprefix("http://"), status))
        return found

    async def _call(self, url: str) -> Result:
        try:
            return await self._caller.call("GET", url, timeout_s=TIMEOUT_S)
        except NoAnswer as error:
            return error


def _event(body: bytes) -> bytes:
    return encode_event(body, event=b"overview")
