"""Poll: messages for one member of a consumer, with leases from the write manager and batches from the brokers.

Leases move between members when members come and go: a rebalance. The write manager decides it.
"""

import asyncio
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial

from myqueue.protocol import http_headers, routes
from myqueue.protocol.errors import ConsumerNotFound, MyQueueError, OffsetOutOfRange, Unavailable
from myqueue.protocol.internal import LeaseAnswer, LeaseRequest, TopicRecord
from myqueue.protocol.limits import MAX_WAIT_MS
from myqueue.protocol.models import Poll
from read_manager.batch_slices import BatchSlice, as_json, run_aside, slice_aside
from read_manager.lease_watch import LeaseWatch, WaitingMember
from read_manager.long_poll import ClientConnection, LongPolls, with_remaining_wait
from read_manager.memory_budget import MemoryBudget
from read_manager.metadata_cache import MetadataCache
from read_manager.replica_fetch import LAGGING_PAUSE_S, Fetched, ReplicaFetcher, fetch_bytes
from read_manager.write_manager_client import AsyncWriteManagerClient
from service.error_encoding import JSON
from service.http_messages import HttpRequest, HttpResponse
from service.router import Router

CONCURRENT_FETCHES = 4  # partitions that are read at the same time
RENEWALS_PER_LEASE = 3
USABLE = 0.8  # of a lease's time: it must not end while an answer is on its way


PollEncoder = Callable[[LeaseAnswer, Sequence[BatchSlice]], bytes]


def _assignment(leased: LeaseAnswer) -> str:
    """Equal for equal leases; cursors do not count."""
    terms = sorted((lease["partition_id"], lease["generation"], lease["revoking"]) for lease in leased["leases"])
    return hashlib.blake2b(repr(terms).encode(), digest_size=12).hexdigest()


def as_document(leased: LeaseAnswer, slices: Sequence[BatchSlice]) -> bytes:
    return json.dumps({**leased, "assignment": _assignment(leased), "messages": as_json(slices)}).encode()


def as_lines(leased: LeaseAnswer, slices: Sequence[BatchSlice]) -> bytes:
    """The answer without its messages, then a message in each line."""
    lines: list[object] = [{**leased, "assignment": _assignment(leased)}, *as_json(slices)]
    return b"".join([json.dumps(line).encode() + b"\n" for line in lines])


class PollHandler:
    """Keeps no state of members or leases between two polls."""

    def __init__(
        self,
        write_manager: AsyncWriteManagerClient,
        replicas: ReplicaFetcher,
        topics: MetadataCache,
        long_polls: LongPolls,
        memory: MemoryBudget,
        lease_watch: LeaseWatch,
    ) -> None:
        self._write_manager = write_manager
        self._replicas = replicas
        self._topics = topics
        self._long_polls = long_polls
        self._memory = memory
        self._lease_watch = lease_watch
        self._first = 0  # the partition to read first, so that no partition starves

    def add_routes(self, router: Router) -> None:
        router.add(routes.POLL, self.respond)

    async def respond(self, request: HttpRequest) -> HttpResponse:
        with ClientConnection(request.client_disconnected) as client:
            query = with_remaining_wait(request.parse_json(Poll), request)
            consumer_id = request.path_id("consumer_id", ConsumerNotFound)
            ndjson = request.accepts(http_headers.NDJSON_TYPE)
            answer = await self.poll(consumer_id, query, client, as_lines if ndjson else as_document)
            return HttpResponse(200, [("content-type", http_headers.NDJSON_TYPE if ndjson else JSON)], answer)

    async def poll(
        self, consumer_id: int, request: Poll, client: ClientConnection, encode: PollEncoder = as_document
    ) -> bytes:
        """Waits while there is no message and the leases do not change."""
        deadline_s = asyncio.get_running_loop().time() + min(request.wait_ms, MAX_WAIT_MS) / 1000
        waits = request.wait_ms > 0 and not request.leave
        with (
            self._lease_watch.watched(consumer_id, request.member) if waits else nullcontext(WaitingMember()) as member
        ):
            return await self._poll(consumer_id, request, client, deadline_s, member, encode)

    async def _poll(
        self,
        consumer_id: int,
        request: Poll,
        client: ClientConnection,
        deadline_s: float,
        member: WaitingMember,
        encode: PollEncoder,
    ) -> bytes:
        now_s = asyncio.get_running_loop().time
        asked: LeaseRequest = {
            "member": request.member,
            "released": request.released,
            "leave": request.leave,
            "client_id": request.client_id,
            "host": request.host,
            "held": [position.partition_id for position in request.positions],
        }
        held_s = now_s()
        leased = await self._write_manager.lease(consumer_id, asked)
        if request.leave:
            return encode(leased, [])
        known = request.assignment or _assignment(leased)
        if not request.max_messages:
            if request.assignment is None:
                return encode(leased, [])
            return encode(await self._changed(consumer_id, request, leased, client, deadline_s, member), [])
        topic = await self._topic(leased)
        begins: dict[int, int] = {}  # beginning offsets of partitions that retention has cut past their cursors
        while True:
            wanted = _wanted(leased, request, begins)
            async with self._memory.reserved(CONCURRENT_FETCHES * fetch_bytes(request.max_messages, request.max_bytes)):
                until_s = held_s + leased["lease_ms"] / 1000 * USABLE
                slices = await self._read(topic, wanted, request, begins, until_s)
                over = now_s() >= deadline_s or self._long_polls.stopping or client.is_closed
                if slices or over or _assignment(leased) != known:
                    return await run_aside(sum(each.bytes for each in slices), partial(encode, leased, slices))
            renewal_s = now_s() + leased["lease_ms"] / 1000 / RENEWALS_PER_LEASE
            wanted = {p: max(offset, begins.get(p, 0)) for p, offset in wanted.items()}
            if any(end > wanted[p] for p, end in self._long_polls.known_ends(topic, wanted).items()):
                await asyncio.sleep(LAGGING_PAUSE_S)
            elif wanted:
                await self._long_polls.wait_beyond(
                    topic, wanted, min(deadline_s, renewal_s), client, interrupt=member.changed
                )
            else:
                await self._long_polls.pause(min(deadline_s, renewal_s), client, interrupt=member.changed)
            if client.is_closed:
                return encode(leased, [])  # without renewing leases that the member may have left
            held_s = now_s()
            leased = await self._renewed(consumer_id, request.member, member)

    async def _changed(
        self,
        consumer_id: int,
        request: Poll,
        leased: LeaseAnswer,
        client: ClientConnection,
        deadline_s: float,
        member: WaitingMember,
    ) -> LeaseAnswer:
        """The leases, once they are others than the member knows, or at the deadline."""
        now_s = asyncio.get_running_loop().time
        while _assignment(leased) == request.assignment and not self._long_polls.stopping:
            renewal_s = now_s() + leased["lease_ms"] / 1000 / RENEWALS_PER_LEASE
            await self._long_polls.pause(min(deadline_s, renewal_s), client, interrupt=member.changed)
            if client.is_closed or now_s() >= deadline_s:
                break
            leased = await self._renewed(consumer_id, request.member, member)
        return leased

    async def _renewed(self, consumer_id: int, name: str, member: WaitingMember) -> LeaseAnswer:
        member.reset()
        renewal: LeaseRequest = {"member": name, "released": [], "leave": False, "renewal": True}
        return await self._write_manager.lease(consumer_id, renewal)

    async def _topic(self, leased: LeaseAnswer) -> TopicRecord:
        topic = await self._topics.topic(leased["topic"])
        if topic["topic_id"] != leased["topic_id"]:
            topic = await self._topics.topic(leased["topic"], fresh=True)  # it was deleted and created again
        return topic

    async def _read(
        self, topic: TopicRecord, wanted: Mapping[int, int], request: Poll, begins: dict[int, int], until_s: float
    ) -> list[BatchSlice]:
        """A few partitions at a time until the answer is full; each poll begins with another partition.

        Not after `until_s`: without a lease the partition may be another member's.
        """
        self._first += 1
        order = sorted(wanted)
        order = [order[(self._first + at) % len(order)] for at in range(len(order))]
        slices: list[BatchSlice] = []
        failures: list[MyQueueError] = []
        limit, max_bytes = request.max_messages, request.max_bytes
        for at in range(0, len(order), CONCURRENT_FETCHES):
            some = order[at : at + CONCURRENT_FETCHES]
            size = fetch_bytes(limit, max_bytes)
            try:
                async with asyncio.timeout_at(until_s):
                    fetched = await asyncio.gather(*(self._fetch(topic, p, wanted[p], size, begins) for p in some))
            except TimeoutError:
                return slices
            for p, answer in zip(some, fetched, strict=True):
                if isinstance(answer, MyQueueError):
                    failures.append(answer)
                    continue
                offset = max(wanted[p], begins.get(p, 0))
                found, full = await slice_aside(answer.items, offset, limit, max_bytes, need_one=not slices)
                slices += found
                limit -= sum(each.rows.num_rows for each in found)
                max_bytes -= sum(each.bytes for each in found)
                if full or max_bytes <= 0:
                    return slices
        if failures and len(failures) == len(order):
            raise failures[0]
        return slices

    async def _fetch(
        self, topic: TopicRecord, partition_id: int, offset: int, max_bytes: int, begins: dict[int, int]
    ) -> Fetched | MyQueueError:
        """Errors are returned: a partition that cannot be read must not keep the others from being read."""
        try:
            try:
                return await self._replicas.fetch(topic, partition_id, offset, max_bytes)
            except OffsetOutOfRange as error:
                # Retention was faster than the consumer: go on at the beginning of the log.
                begins[partition_id] = int(error.details["beginning_offset"])
                return await self._replicas.fetch(topic, partition_id, begins[partition_id], max_bytes)
        except (Unavailable, OffsetOutOfRange) as error:
            return error


def _wanted(leased: LeaseAnswer, request: Poll, begins: Mapping[int, int]) -> dict[int, int]:
    """The next offset of each partition that this member may read."""
    positions = {position.partition_id: position.offset for position in request.positions}
    return {
        p: max(lease["cursor"], positions.get(p, 0), begins.get(p, 0))
        for lease in leased["leases"]
        if not lease["revoking"]
        for p in (lease["partition_id"],)
    }
