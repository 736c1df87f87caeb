"""A message with an idempotency key: it is sent alone, by the simple API."""

import logging
import time

from myqueue.delivery import BatchResult
from myqueue.protocol.errors import MyQueueError, Unavailable
from myqueue.simple_api import SimpleApi

logger = logging.getLogger("myqueue")


class DeliveryExpired(Unavailable):
    """The message waited in the send buffer for longer than `delivery_timeout_s`; it was never sent."""

    retriable = False
    default_outcome = "not_written"


class IdempotentMessage(BatchResult):
    __slots__ = ("deadline", "idempotency_key", "key", "to_partition", "value")

    def __init__(
        self,
        topic: str,
        value: bytes,
        key: bytes | None,
        partition: int | None,
        idempotency_key: str,
        deadline: float,
    ) -> None:
        super().__init__(topic)
        self.value, self.key, self.to_partition = value, key, partition
        self.idempotency_key, self.deadline = idempotency_key, deadline
        self.count = 1

    @property
    def size(self) -> int:
        return len(self.value) + len(self.key or b"")

    def send(self, api: SimpleApi, producer_id: int) -> int | MyQueueError:
        """Its offset in `to_partition`, or why it failed."""
        left_s = self.deadline - time.monotonic()
        if left_s <= 0:
            return DeliveryExpired(f"waited in the send buffer past its delivery timeout: topic {self.topic!r}")
        try:
            body = api.produce(
                self.topic,
                producer_id,
                self.value,
                self.key,
                self.to_partition,
                idempotency_key=self.idempotency_key,
                deadline_s=left_s,
            )
        except MyQueueError as error:
            return error
        except Exception as error:
            logger.exception("sending to %s", self.topic)
            return MyQueueError(f"defect while sending to topic {self.topic!r}: {error!r}", outcome="unknown")
        self.to_partition = body["partition_id"]
        offset: int = body["offset"]
        return offset
