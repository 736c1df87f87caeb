"""Which servers of the PostgreSQL trio answer, and what each of them is."""

import math
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from db.engine import Address, engine_of

Role = Literal["primary", "standby"]

KEPT_S = 2.0
STALE_S = 10.0  # nobody is told anything older, rather waits
_ORDER: tuple[Role | None, ...] = ("primary", "standby", None)


class Servers:
    """Asked at most every two seconds, however many want to know. One that hangs costs whoever asks about as long."""

    def __init__(self, address: Address, application: str) -> None:
        self._engines = [
            engine_of(address.model_copy(update={"hosts": [host]}).servers("any", application, avoid_s=0), 1)
            for host in address.hosts
        ]
        self._workers = ThreadPoolExecutor(len(self._engines), "servers")
        self._asking = threading.Lock()
        self._known: Sequence[Role | None] = ()
        self._asked_s = -math.inf

    def roles(self) -> Sequence[Role | None]:
        """One of each server, the primary first; None for one that does not answer."""
        if self._age_s() <= KEPT_S:
            return self._known
        if self._asking.acquire(blocking=self._age_s() > STALE_S):
            try:
                if self._age_s() > KEPT_S:  # else another one has asked while this one waited
                    self._known = sorted(self._workers.map(_role, self._engines), key=_ORDER.index)
                    self._asked_s = time.monotonic()
            finally:
                self._asking.release()
        return self._known

    def _age_s(self) -> float:
        return time.monotonic() - self._asked_s


def _role(engine: Engine) -> Role | None:
    try:
        with engine.connect() as connection:
            return "standby" if connection.execute(text("SELECT pg_is_in_recovery()")).scalar() else "primary"
    except (DBAPIError, PoolTimeout):
        return None
