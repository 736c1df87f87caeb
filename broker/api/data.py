"""The data plane: batches in and out as they are, for clients with a grant, through the load balancer."""

from collections.abc import Callable

from broker.api.requests import fetch_of, partition_id_of, topic_id_of
from broker.fetching import Fetched, Fetching
from broker.grants import Grants
from broker.intake import Intake
from broker.partitions import Partitions
from broker.replica import Replica
from myqueue.protocol import http_headers
from myqueue.protocol.errors import NotLeader, UnsupportedMediaType
from myqueue.protocol.grant import READ, WRITE
from myqueue.protocol.routes import APPEND_BATCH, FETCH_BATCHES
from service.http_messages import Headers, HttpRequest, HttpResponse
from service.router import Router


class DataPlane:
    def __init__(
        self,
        own_id: Callable[[], int | None],
        partitions: Partitions,
        grants: Grants,
        intake: Intake,
        fetching: Fetching,
    ) -> None:
        self._own_id = own_id
        self._partitions = partitions
        self._grants = grants
        self._intake = intake
        self._fetching = fetching

    def add_to(self, router: Router) -> None:
        router.add(APPEND_BATCH, self.append)
        router.add(FETCH_BATCHES, self.fetch)

    async def append(self, request: HttpRequest) -> HttpResponse:
        replica = self._replica(request, WRITE)
        if request.content_type != http_headers.BATCH_TYPE:
            raise UnsupportedMediaType(f"Content-Type must be {http_headers.BATCH_TYPE}")
        placed = await self._intake.append(replica, request.body)
        answer = {
            "status": "success",
            "base_offset": placed.base_offset,
            "count": placed.count,
            "append_time": placed.append_time,
            "end_offset": placed.end_offset,
            "duplicate": placed.duplicate,
        }
        return HttpResponse.json(answer)

    async def fetch(self, request: HttpRequest) -> HttpResponse:
        replica = self._replica(request, READ)
        asked = fetch_of(request.query())
        fetched = await self._fetching.batches(replica, *asked)
        if not fetched.entries:
            return HttpResponse.empty(offset_headers(fetched))
        parts: list[bytes | memoryview] = []
        for entry in fetched.entries:
            parts += (entry.head, entry.body)
        return HttpResponse(200, [("content-type", http_headers.BATCH_TYPE), *offset_headers(fetched)], b"".join(parts))

    def _replica(self, request: HttpRequest, right: int) -> Replica:
        values = request.path_values
        topic_id, partition_id = topic_id_of(values["topic_id"]), partition_id_of(values["partition_id"])
        self._grants.check(request.header(http_headers.GRANT), right, topic_id, partition_id)
        if values["broker_id"] != str(self._own_id()):
            raise NotLeader("this is another broker; ask for the routing again")
        return self._partitions.get(topic_id, partition_id)


def offset_headers(fetched: Fetched) -> Headers:
    return [
        (http_headers.END_OFFSET.lower(), str(fetched.end_offset)),
        (http_headers.BEGINNING_OFFSET.lower(), str(fetched.start_offset)),
    ]
