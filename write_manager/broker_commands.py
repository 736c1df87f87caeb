"""Commands to brokers: partitions, their members and leaders. Every one carries the epoch of this write manager.

A broker learns the epoch when it registers, at the latest with the first command, and refuses older ones from then on.
One that knows a higher epoch than the newest there is knows one that PostgreSQL has forgotten, as after a restore: then
the stored epoch goes up to the broker's, and this process ends. The next write manager to become active goes above it.
"""

import threading
from uuid import UUID

from db.primary import Primary
from myqueue.protocol import http_headers
from myqueue.protocol.errors import ManagerUnavailable, MetadataUnavailable, StaleEpoch
from myqueue.protocol.internal import InternalRoute
from service.calls import Caller
from service.logs import Log


class BrokerCommands:
    def __init__(self, primary: Primary, caller: Caller, log: Log) -> None:
        self._primary = primary
        self._caller = caller
        self._log = log
        self._raising = threading.Lock()
        self._said = 0  # the highest epoch that a warning was logged for

    def send(
        self,
        route: InternalRoute,
        endpoint: str,
        topic_id: UUID | str,
        partition_id: int,
        body: object,
        *,
        timeout_s: float,
    ) -> None:
        epoch = self._own_epoch()
        url = endpoint + route.path_for(topic_id=topic_id, partition_id=partition_id)
        try:
            self._caller.json(
                route.method, url, body, timeout_s=timeout_s, extra_headers={http_headers.EPOCH: str(epoch)}
            )
        except StaleEpoch as error:
            named = error.details.get("epoch")
            if isinstance(named, int) and named > epoch:
                self._go_above(epoch, named)
            raise

    def confirm_epoch(self, known: int) -> int:
        """The own epoch, for a broker that registers and knows epochs up to `known`."""
        epoch = self._own_epoch()
        if known > epoch:
            self._go_above(epoch, known)
            raise ManagerUnavailable(
                "the broker knows a newer write manager than this one, which is to be replaced: register again",
                outcome="not_written",
            )
        return epoch

    def _own_epoch(self) -> int:
        epoch = self._primary.epoch
        if epoch is None:
            raise ManagerUnavailable("the write manager is not active", outcome="not_written")
        return epoch

    def _go_above(self, epoch: int, named: int) -> None:
        # One thread at a time: the others, whose commands are refused too, need not wait for it.
        if not self._raising.acquire(blocking=False):
            return
        try:
            self._primary.raise_epoch(named)
            self._log.error("a broker knows a newer write manager; this one stops", epoch=epoch, broker_epoch=named)
        except MetadataUnavailable as error:  # this one goes on; the next refusal tries again
            if named > self._said:
                self._said = named
                self._log.warning(
                    "a broker knows a newer write manager, and the epoch was not raised yet",
                    epoch=epoch,
                    broker_epoch=named,
                    why=error.message,
                )
        finally:
            self._raising.release()
