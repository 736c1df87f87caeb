"""Real transports on real sockets, several in one event loop."""

import asyncio
import os
import socket
from contextlib import AsyncExitStack

import pytest
import uvloop
from structlog.testing import capture_logs

from broker.peers.handshake import Dialling, Purpose
from broker.peers.transport import parsed_address, purpose_of
from broker.raft.configuration import MemberId
from broker.raft.messages import Append, AppendReply, Envelope, Heartbeat, Vote
from stack.local import free_port
from tests.integration.peer_end import GROUP, End, Run, introduce, started, until
from tests.integration.peer_process import SECRET


def test_three_brokers_send_to_each_other(run: Run) -> None:
    async def scenario() -> None:
        ends = [End(1), End(2), End(3)]
        async with started(*ends):
            for end in ends:
                for other in ends:
                    if other is not end:
                        assert other.broker_id is not None
                        end.transport.send(other.broker_id, end.vote(other.broker_id))
                        end.transport.send(
                            other.broker_id, end.entries(other.broker_id, 1, b"x" * 1_000_000, b"", b"y")
                        )
            await until(lambda: all(len(end.frames) == 4 for end in ends), "four frames each")
            for end in ends:
                assert end.broker_id is not None
                others = [other for other in ends if other is not end]
                expected = [other.vote(end.broker_id) for other in others]
                expected += [other.entries(end.broker_id, 1, b"x" * 1_000_000, b"", b"y") for other in others]
                assert sorted(map(repr, end.frames)) == sorted(map(repr, expected))
                assert sorted(end.connects) == [other.broker_id for other in others]

    run(scenario())


def test_bulk_keeps_order_and_control_does_not_wait_for_it(run: Run) -> None:
    async def scenario() -> None:
        one, two = End(1), End(2)
        async with started(one, two):
            for index in range(1, 13):
                one.transport.send(2, one.entries(2, index, bytes([index]) * (1 << 20)))
            one.transport.send(2, one.vote(2))
            await until(lambda: len(two.frames) == 13, "everything")
            messages = [frame.message for frame in two.frames if isinstance(frame, Envelope)]
            appends = [message for message in messages if isinstance(message, Append)]
            assert [append.entries[0].index for append in appends] == list(range(1, 13))
            assert all(append.entries[0].body == bytes([append.entries[0].index]) * (1 << 20) for append in appends)
            assert not isinstance(messages[-1], Vote)
            assert one.transport.counters.dropped_frames == 0

    run(scenario())


def test_what_does_not_fit_is_dropped_and_the_rest_arrives() -> None:
    async def scenario() -> None:
        one, two = End(1), End(2)
        async with started(one, two):
            for index in range(1, 41):
                one.transport.send(2, one.entries(2, index, bytes(1 << 20)))
            counters = one.transport.counters
            assert counters.sent_bytes <= 16 << 20
            assert counters.sent_frames == 15
            assert counters.dropped_frames == 25
            await until(lambda: len(two.frames) == 15, "what was taken")
            one.transport.send(2, one.entries(2, 41, bytes(1 << 20)))
            await until(lambda: len(two.frames) == 16, "there is room again")

    uvloop.run(scenario())


def test_frames_to_nobody_are_dropped() -> None:
    async def scenario() -> None:
        one = End(1)
        async with started(one, meet=False):
            one.transport.send(2, one.vote(2))
            nowhere = {2: f"127.0.0.1:{free_port()}", 3: "nonsense", 4: "a..b:80"}
            with capture_logs() as logs:
                one.transport.set_peers({1: one.address, **nowhere})
                await until(lambda: len(logs) == 3, "each is logged")
                await asyncio.sleep(0.2)
            assert len(logs) == 3, "and not again"
            for broker_id in (1, 2, 3, 4):
                one.transport.send(broker_id, one.vote(broker_id))
            assert one.transport.counters.dropped_frames == 5
            assert one.frames == []

    uvloop.run(scenario())


def test_what_cannot_be_encoded_is_counted_and_does_no_harm() -> None:
    async def scenario() -> None:
        one, two = End(1), End(2)
        async with started(one, two):
            one.transport.send(2, one.entries(2, 1, bytes(7 << 20)))
            one.transport.send(2, one.vote(2))
            await until(lambda: two.frames == [one.vote(2)], "the next frame")
            assert one.transport.counters.unsendable_frames == 1

    uvloop.run(scenario())


def test_a_new_address_is_followed_and_a_removed_peer_let_go(run: Run) -> None:
    async def scenario() -> None:
        one, before, after = End(1), End(2), End(2)
        async with started(one, before), started(after, meet=False):
            one.transport.set_peers({2: after.address})
            await until(lambda: one.connects == [2, 2], "connected again")
            one.transport.send(2, one.vote(2))
            await until(lambda: after.frames, "the frame at the new address")
            assert before.frames == []
            made = one.transport.counters.connections_made
            one.transport.set_peers({2: after.address})
            await asyncio.sleep(0.2)
            assert one.transport.counters.connections_made == made, "the same address again changes nothing"
            one.transport.set_peers({})
            await until(lambda: one.transport.connected == [], "let go")

    run(scenario())


def test_peers_may_be_set_before_the_start_and_from_another_thread() -> None:
    async def scenario() -> None:
        one, two, three = End(1), End(2), End(3)
        async with started(two, three, meet=False):
            one.transport.set_peers({2: two.address})
            async with started(one, meet=False):
                await until(lambda: one.transport.connected == [2], "two")
                await asyncio.to_thread(one.transport.set_peers, {3: three.address})
                await until(lambda: one.transport.connected == [3], "three")

    uvloop.run(scenario())


def test_a_broker_dials_and_listens_only_when_it_knows_its_id() -> None:
    async def scenario() -> None:
        one, two = End(1), End(None)
        async with started(one, two, meet=False):
            one.transport.set_peers({2: two.address})
            two.transport.set_peers({1: one.address, 2: two.address})
            await until(lambda: two.transport.counters.refused_connections, "one is refused")
            assert not one.transport.connected
            assert not two.transport.connected
            two.broker_id = 2
            await until(lambda: one.transport.connected == [2] and two.transport.connected == [1], "connected")

    uvloop.run(scenario())


def test_another_secret_is_refused_on_both_sides_and_said_once() -> None:
    async def scenario() -> None:
        one, other = End(1), End(2, secret="another secret of the tests")
        async with started(one, other, meet=False):
            introduce(one, other)
            with capture_logs() as logs:
                await until(lambda: one.transport.counters.refused_connections > 4, "several attempts")
            assert [line["reason"] for line in logs if "refused" in line["event"]].count(
                "the dialler does not know the secret"
            ) <= 2, "once for each of the two"
            assert not one.transport.connected
            assert not other.transport.connected
            assert one.transport.counters.connections_made == 0

    uvloop.run(scenario())


def test_no_broker_speaks_for_another() -> None:
    async def scenario() -> None:
        one, two = End(1), End(2)
        async with started(one, two):
            one.transport.send(2, Heartbeat(3, 1, 1, 0, 1, ()))
            await until(lambda: two.transport.counters.bad_messages == 1, "found")
            await until(lambda: one.connects == [2, 2], "connected again")
            one.transport.send(2, one.vote(2))
            await until(lambda: two.frames == [one.vote(2)], "the next frame")

    uvloop.run(scenario())


def test_garbage_after_the_handshake_ends_the_connection() -> None:
    async def scenario() -> None:
        two = End(2)
        async with started(two, meet=False):
            reader, writer = await asyncio.open_connection("127.0.0.1", two.transport.port)
            handshake = Dialling(SECRET.encode(), Purpose.BULK, 1, 2, os.urandom(32), None)
            writer.write(handshake.hello)
            while handshake.keys is None:
                writer.write(handshake.receive(await reader.readexactly(handshake.needs)))
            writer.write(os.urandom(500))
            assert await reader.read() == b""
            writer.close()
            assert two.transport.counters.bad_messages == 1
            assert two.frames == []

    asyncio.run(scenario())


def ended(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def test_unauthenticated_connections_are_evicted() -> None:
    async def scenario() -> None:
        two = End(2)
        async with started(two, meet=False), AsyncExitStack() as stack:
            unauthenticated = [
                stack.enter_context(socket.create_connection(("127.0.0.1", two.transport.port))) for _ in range(80)
            ]
            await until(lambda: ended(unauthenticated[15]), "too many at once", within_s=1)
            assert not ended(unauthenticated[16])
            unauthenticated[16].sendall(b"GET / HTTP/1.1\r\nHost: a-broker-somewhere.example\r\n\r\n".ljust(100))
            await until(lambda: ended(unauthenticated[16]), "not our protocol", within_s=1)
            assert two.transport.counters.refused_connections == 1
            assert not ended(unauthenticated[17])
            await until(lambda: all(map(ended, unauthenticated[17:])), "none stays without a proof", within_s=4)
            one = End(1)
            async with started(one, meet=False):
                one.transport.set_peers({2: two.address})
                await until(lambda: one.transport.connected == [2], "a broker gets in")

    uvloop.run(scenario())


def test_stopping_twice_or_without_a_start_is_fine_and_frees_the_port(run: Run) -> None:
    async def scenario() -> None:
        one, two = End(1), End(2)
        await one.transport.stop()
        async with started(one, two):
            one.transport.send(2, one.vote(2))
            await one.transport.stop()
            await one.transport.stop()
            one.transport.set_peers({2: two.address})
            one.transport.send(2, one.vote(2))
            await until(lambda: two.frames == [one.vote(2)], "what was sent before the stop")
            again = End(1, port=one.transport.port)
            async with started(again, meet=False):
                again.transport.set_peers({2: two.address})
                await until(lambda: again.transport.connected == [2] and two.transport.connected == [1], "back")

    run(scenario())


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("127.0.0.1:80", ("127.0.0.1", 80)),
        ("broker-2.internal:7001", ("broker-2.internal", 7001)),
        ("[::1]:7001", ("::1", 7001)),
        ("::1:7001", None),
        ("broker", None),
        (":80", None),
        ("broker:0", None),
        ("broker:65536", None),
        ("broker:٣", None),
        ("broker:-1", None),
    ],
)
def test_addresses(address: str, place: tuple[str, int] | None) -> None:
    assert parsed_address(address) == place


def test_replies_are_small_frames() -> None:
    """They go the way that entries cannot block."""
    member = MemberId(1, 1)
    assert purpose_of(Envelope(GROUP, member, member, AppendReply(1, 1, 1))) is Purpose.CONTROL
    assert purpose_of(Envelope(GROUP, member, member, Append(1, 1, 1, (), 1))) is Purpose.CONTROL
    assert purpose_of(End(1).entries(2, 1, b"x")) is Purpose.BULK
