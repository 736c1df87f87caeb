"""Data folders in the handshake of real transports: accepted, refuted, or not known to a broker of an older release."""

import asyncio

from broker.peers.folder_starts import FolderStarts
from broker.peers.handshake import OLDEST_VERSION, DataFolder, Listening
from tests.integration.peer_end import End, Run, started, until
from tests.integration.peer_process import SECRET

FOLDER = DataFolder(incarnation=0xA, starts=5, session=0x51)


def test_the_others_accept_a_folder_and_refute_an_older_copy_of_it(run: Run) -> None:
    async def scenario() -> None:
        starts = FolderStarts({})
        one, two = End(1, folder=FOLDER), End(2, starts=starts)
        async with started(one, two):
            assert set(one.accepted) == {(2, 0xA)}
            assert one.refuted == []
        copy, again = End(1, folder=FOLDER._replace(starts=4)), End(2, starts=starts)
        async with started(copy, again, meet=False):
            copy.transport.set_peers({2: again.address})
            await until(lambda: copy.refuted, "refuted")
            incarnation, why = copy.refuted[0]
            assert incarnation == 0xA
            assert "broker 2 has seen 5 starts" in why
            assert copy.transport.connected == []
            assert copy.accepted == []
            assert again.transport.counters.refused_connections > 0
            copy.folder = DataFolder(0xB, 1, 0x52)
            await until(lambda: copy.transport.connected == [2], "taken under a new incarnation")
            assert set(copy.accepted) == {(2, 0xB)}

    run(scenario())


def test_what_is_remembered_outlives_a_restart_of_the_one_who_remembers(run: Run) -> None:
    async def scenario() -> None:
        stored: dict[tuple[int, int], int] = {}

        def remember(broker_id: int, incarnation: int, starts: int) -> None:
            stored[broker_id, incarnation] = starts

        one, two = End(1, folder=FOLDER), End(2, starts=FolderStarts(stored, remember))
        async with started(one, two):
            assert stored == {(1, 0xA): 5}
        copy, restarted = End(1, folder=FOLDER._replace(starts=4)), End(2, starts=FolderStarts(stored, remember))
        async with started(copy, restarted, meet=False):
            copy.transport.set_peers({2: restarted.address})
            await until(lambda: copy.refuted, "refuted")

    run(scenario())


class OldBroker:
    """Takes connections as a broker of the oldest version does: it hangs up on hellos of any other one."""

    def __init__(self) -> None:
        self.versions: list[int] = []

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        listening = Listening(SECRET.encode(), 2, bytes(32), lambda *_: None)
        hello = await reader.readexactly(listening.needs)
        self.versions.append(hello[4])
        if hello[4] != OLDEST_VERSION:
            writer.transport.abort()
            return
        writer.write(listening.receive(hello))
        writer.write(listening.receive(await reader.readexactly(listening.needs)))
        await reader.read()
        writer.close()


def test_a_broker_of_the_oldest_version_is_spoken_to_in_that_version(run: Run) -> None:
    async def scenario() -> None:
        old = OldBroker()
        server = await asyncio.start_server(old.take, "127.0.0.1", 0)
        one = End(1, folder=FOLDER)
        async with started(one, meet=False):
            one.transport.set_peers({2: f"127.0.0.1:{server.sockets[0].getsockname()[1]}"})
            await until(lambda: one.transport.connected == [2], "connected")
            assert one.accepted == [], "it has not looked at the folder"
            assert old.versions.count(OLDEST_VERSION) == 2
        server.close()

    run(scenario())


def test_a_broker_of_the_oldest_version_gets_in(run: Run) -> None:
    async def scenario() -> None:
        old, new = End(1, folder=None), End(2, folder=FOLDER)
        async with started(old, new):
            old.transport.send(2, old.vote(2))
            await until(lambda: new.frames == [old.vote(2)], "its frame")
            assert old.accepted == []

    run(scenario())
