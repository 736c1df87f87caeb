"""Fencing of commands: only the newest write manager commands this broker.

Every command carries the epoch of the write manager that sends it. The highest one is on disk before the first command
under it is carried out, so a broker that was killed knows it too.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from broker.raft.configuration import GroupConfiguration, MemberId
from myqueue.protocol import http_headers
from myqueue.protocol.errors import InvalidRequest, StaleEpoch, Unavailable
from myqueue.protocol.models import MAX_OFFSET

# A command takes less: 1.8 s for an answer of the group, 5 s for the disk.
_EARLIER_COMMANDS_S = 6.0
_HEARD_S = 0.5  # less than a heartbeat may be late


def epoch_of(header: str | None) -> int:
    """A write manager of a release before epochs were sent counts as the oldest one."""
    if header is None:
        return 0
    if not (header.isascii() and header.isdecimal() and len(header) <= 19 and int(header) <= MAX_OFFSET):
        raise InvalidRequest(f"{http_headers.EPOCH}: must be a whole number")
    return int(header)


class CommandFence:
    """Any thread may call it.

    Commands of one epoch run beside each other. One under a higher epoch waits until those before it have ended: from
    its own answer on nothing that an older write manager asked for happens any more.
    """

    def __init__(self, stored: int, store: Callable[[int], None], *, wait_s: float = _EARLIER_COMMANDS_S) -> None:
        """`store` returns when the epoch is on disk; what was submitted to the disk before it is there then, too."""
        self._stored = stored
        self._store = store
        self._wait_s = wait_s
        self._highest = stored
        self._running = 0
        self._changed = threading.Condition()
        self._raising = threading.Lock()  # of its own: the other one is held while the disk works

    @property
    def epoch(self) -> int:
        return self._highest

    @contextmanager
    def command(self, epoch: int) -> Iterator[None]:
        with self._changed:
            self._admit(epoch)
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def hear_of(self, epoch: int) -> None:
        """Of a write manager that this broker registers with: from here on older ones command nothing.

        In memory it counts also when it could not be stored in time; a command tries again. Heartbeats do not wait for
        it: the write manager would count this broker as gone.
        """
        if epoch < self._highest:
            raise StaleEpoch(details={"epoch": self._highest})
        if epoch != self._stored:
            self._raise(epoch)
            storing = threading.Thread(target=self._try_to_store, args=(epoch,), name="epoch", daemon=True)
            storing.start()
            storing.join(_HEARD_S)

    def _try_to_store(self, epoch: int) -> None:
        with suppress(Unavailable, StaleEpoch), self.command(epoch):
            """Nothing but that."""

    def _raise(self, epoch: int) -> None:
        with self._raising:
            self._highest = max(self._highest, epoch)

    def _admit(self, epoch: int) -> None:
        """In memory it counts before it is stored: commands of older ones must not keep it waiting for ever."""
        self._raise(epoch)
        deadline_s = time.monotonic() + self._wait_s
        while True:
            if epoch < self._highest:
                raise StaleEpoch(details={"epoch": self._highest})
            if epoch == self._stored:
                return
            if self._running == 0:
                self._store(epoch)
                self._stored = epoch
                continue  # a higher one may have been heard of meanwhile
            if not self._changed.wait(deadline_s - time.monotonic()):
                raise Unavailable(
                    "commands of an earlier write manager are still being carried out", outcome="not_written"
                )


class KnownReplica(NamedTuple):
    """What the write manager has seen of a replica when it decided to delete it."""

    incarnation: int
    configuration_index: int


def delete_refusal(me: MemberId, known: KnownReplica, newest_index: int, newest: GroupConfiguration) -> str | None:
    """Why a replica is not deleted: the write manager decided it on less than this replica knows.

    `newest` is the newest configuration in its log, committed or not: a voter counts from the moment it has the entry.
    A replica that its group removed may never hear of it, so being a member by an older configuration than the known
    one is no reason.
    """
    if me.incarnation != known.incarnation:
        return "the replica is another member than the one to delete"
    if newest_index > known.configuration_index and me in newest.members:
        return f"the replica is a member by configuration {newest_index}, newer than {known.configuration_index}"
    return None
