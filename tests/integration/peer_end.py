"""One broker's end of the peer connections: a real transport on a real socket."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import structlog

from broker.peers.folder_starts import FolderStarts
from broker.peers.handshake import DataFolder
from broker.peers.transport import Transport
from broker.raft.configuration import GroupId, MemberId
from broker.raft.entry import Kind, LogEntry
from broker.raft.messages import Append, Envelope, Frame, Vote
from tests.integration.peer_process import SECRET

SOME_FOLDER = DataFolder(incarnation=0xA, starts=1, session=1)
GROUP = GroupId(UUID(int=7), 0)
Run = Callable[[Coroutine[Any, Any, None]], None]


class End:
    """One broker's transport and what it got."""

    def __init__(
        self,
        broker_id: int | None,
        *,
        port: int = 0,
        secret: str = SECRET,
        folder: DataFolder | None = SOME_FOLDER,
        starts: FolderStarts | None = None,
    ) -> None:
        """Without a folder it dials as a broker of the oldest version."""
        self.broker_id = broker_id
        self.folder = folder
        self.accepted: list[tuple[int, int]] = []
        self.refuted: list[tuple[int, str]] = []
        self.frames: list[Frame] = []
        self.connects: list[int] = []
        self.transport = Transport(
            host="127.0.0.1",
            port=port,
            broker_id=lambda: self.broker_id,
            secret=secret,
            log=structlog.get_logger(),
            on_frame=self.frames.append,
            on_connected=self.connects.append,
            folder=lambda: self.folder,
            folder_starts=starts,
            on_accepted=lambda *accepted: self.accepted.append(accepted),
            on_refuted=lambda *refuted: self.refuted.append(refuted),
        )

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.transport.port}"

    def vote(self, to: int, term: int = 1) -> Envelope:
        assert self.broker_id is not None
        return Envelope(GROUP, MemberId(self.broker_id, 11), MemberId(to, 22), Vote(term, 5, 1, False))

    def entries(self, to: int, index: int, *bodies: bytes) -> Envelope:
        assert self.broker_id is not None
        entries = tuple(
            LogEntry(index + n, 1, Kind.MESSAGES, index + n, 9, 1, None, (), body) for n, body in enumerate(bodies)
        )
        return Envelope(GROUP, MemberId(self.broker_id, 11), MemberId(to, 22), Append(1, index - 1, 1, entries, 0))


@asynccontextmanager
async def started(*ends: End, meet: bool = True) -> AsyncIterator[None]:
    for end in ends:
        await end.transport.start()
    try:
        if meet:
            introduce(*ends)
            await until(lambda: all(len(end.transport.connected) == len(ends) - 1 for end in ends), "all connected")
        yield
    finally:
        for end in ends:
            await end.transport.stop()


def introduce(*ends: End) -> None:
    addresses = {end.broker_id: end.address for end in ends if end.broker_id is not None}
    for end in ends:
        end.transport.set_peers(addresses)


async def until(look: Callable[[], object], what: str, *, within_s: float = 5) -> None:
    deadline_s = asyncio.get_running_loop().time() + within_s
    while not look():
        assert asyncio.get_running_loop().time() < deadline_s, f"not within {within_s} s: {what}"
        await asyncio.sleep(0.01)
