"""Access to the data plane: a request has to carry a grant for the partition and name this broker."""

import time
from collections.abc import Callable
from uuid import UUID

from broker.partitions import Partitions
from broker.replica import Replica
from broker.request_values import partition_of
from myqueue.protocol import http_headers
from myqueue.protocol.errors import GrantInvalid, NotLeader
from myqueue.protocol.grant import Grant, verify
from service.http_messages import HttpRequest

_REMEMBERED = 4096
_MAX_CHARS = 200


class GrantCache:
    """Grants verified lately: verifying one costs more than looking it up."""

    def __init__(self, secret: str, clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        self._secret = secret
        self._clock_ms = clock_ms
        self._verified: dict[str, Grant] = {}

    def check(self, text: str | None, right: int, topic_id: UUID, partition_id: int) -> None:
        if not text or len(text) > _MAX_CHARS:
            raise GrantInvalid()
        now_ms = self._clock_ms()
        grant = self._verified.get(text)
        if grant is None:
            grant = verify(self._secret, text, now_ms)
            if len(self._verified) >= _REMEMBERED:
                self._verified.clear()
            self._verified[text] = grant
        elif grant.expires_ms <= now_ms:
            del self._verified[text]
            raise GrantInvalid()
        grant.check(right, topic_id, partition_id)


class DataPlaneAccess:
    def __init__(self, own_id: Callable[[], int | None], partitions: Partitions, grants: GrantCache) -> None:
        self._own_id = own_id
        self._partitions = partitions
        self._grants = grants

    def replica(self, request: HttpRequest, right: int) -> Replica:
        topic_id, partition_id = partition_of(request)
        self._grants.check(request.header(http_headers.GRANT), right, topic_id, partition_id)
        if request.path_values["broker_id"] != str(self._own_id()):
            raise NotLeader("this is another broker; ask for the routing again")
        return self._partitions.get(topic_id, partition_id)
