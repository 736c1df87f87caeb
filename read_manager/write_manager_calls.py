"""What a read manager asks of the write manager."""

import time
from typing import Any

from myqueue.protocol import internal, routes
from myqueue.protocol.errors import ManagerUnavailable
from myqueue.protocol.internal import (
    ClaimAnswer,
    ClaimRequest,
    ConsumerCursors,
    GiveBack,
    ManagerHeartbeat,
    TopicRecord,
)
from service.calls import Caller, NoAnswer

CALL_TIMEOUT_S = 5.0  # longer than the write manager waits for PostgreSQL
PATIENCE_S = 1.2
PAUSE_S = 0.1


class WriteManagerCalls:
    def __init__(self, caller: Caller, url: str) -> None:
        self._caller = caller
        self._url = url.rstrip("/")

    def topics(self) -> list[str]:
        names: list[str] = self._ask("GET", internal.CATALOG_TOPICS)["topics"]
        return names

    def topic(self, name: str) -> TopicRecord:
        record: TopicRecord = self._ask("GET", internal.CATALOG_TOPIC.format(topic=name))
        return record

    def claim(self, request: ClaimRequest) -> ClaimAnswer:
        """Repeated when no answer came: the identity in the request makes that safe."""
        answer: ClaimAnswer = self._ask("POST", internal.CLAIM, request, patience_s=PATIENCE_S)
        return answer

    def give_back(self, request: GiveBack) -> None:
        self._ask("POST", internal.GIVE_BACK, request, patience_s=PATIENCE_S)

    def cursors(self, consumer_id: int) -> ConsumerCursors:
        answer: ConsumerCursors = self._ask("GET", internal.CURSORS.format(consumer_id=consumer_id))
        return answer

    def heartbeat(self, request: ManagerHeartbeat) -> None:
        self._ask("POST", internal.MANAGER_HEARTBEAT, request)

    def register_consumer(self, request: object) -> tuple[int, bool]:
        """The consumer's id, and whether it is new."""
        answer = self._ask("POST", f"/internal{routes.REGISTER_CONSUMER.path}", request)
        return answer["consumer_id"], answer["new"]

    def _ask(self, method: str, path: str, body: object | None = None, *, patience_s: float = 0) -> Any:
        """With patience, a call that got no answer is made again. Errors that it answered with are passed on."""
        started_s = time.monotonic()
        while True:
            try:
                return self._caller.json(method, self._url + path, body, timeout_s=CALL_TIMEOUT_S)
            except NoAnswer as error:
                if time.monotonic() - started_s + PAUSE_S > patience_s:
                    raise ManagerUnavailable("the write manager does not answer", outcome=error.outcome) from error
            time.sleep(PAUSE_S)
