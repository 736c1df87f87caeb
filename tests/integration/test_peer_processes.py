"""Peers in other processes that are killed, stopped and come back."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop

from broker.raft.messages import Heartbeat, HeartbeatReply
from stack.local import free_port
from tests.integration.peer_end import End, Run, started, until

ROOT = Path(__file__).parents[2]


class Other:
    def __init__(self, broker_id: int, peers: dict[int, str]) -> None:
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        named = [f"{peer}={address}" for peer, address in peers.items()]
        self._command = [
            *(sys.executable, "-m", "tests.integration.peer_process", str(broker_id), str(self.port)),
            *named,
        ]
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            self._command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'client'}"},
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        return process

    def start_again(self) -> None:
        self.process = self._start()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def others() -> Iterator[list[Other]]:
    running: list[Other] = []
    yield running
    for other in running:
        if other.process.poll() is None:
            other.process.send_signal(signal.SIGCONT)
            other.kill()


async def heartbeat_answered(one: End, broker_id: int, number: int) -> None:
    """Sent again as the core would."""

    def answered() -> bool:
        one.transport.send(broker_id, Heartbeat(1, 1, number, 0, 1, ()))
        replies = [frame for frame in one.frames if isinstance(frame, HeartbeatReply)]
        return any((reply.broker_id, reply.sent_at) == (broker_id, number) for reply in replies)

    await until(answered, f"broker {broker_id} answers heartbeat {number}")


def test_killed_processes_are_found_again(others: list[Other]) -> None:
    async def scenario() -> None:
        one = End(1)
        async with started(one, meet=False):
            for broker_id in (2, 3):
                others.append(await asyncio.to_thread(Other, broker_id, {1: one.address}))
            one.transport.set_peers({2: others[0].address, 3: others[1].address})
            await heartbeat_answered(one, 2, 1)
            await heartbeat_answered(one, 3, 1)
            for number in range(2, 5):
                others[0].kill()
                await until(lambda: one.transport.connected == [3], "the killed one is gone")
                one.transport.send(2, one.entries(2, 1, bytes(1 << 20)))
                await heartbeat_answered(one, 3, number)
                await asyncio.to_thread(others[0].start_again)
                await heartbeat_answered(one, 2, number)
            assert one.transport.counters.connections_lost == 6

    uvloop.run(scenario())


def test_a_stopped_process_counts_as_gone_after_three_seconds_and_is_found_again(others: list[Other]) -> None:
    async def scenario() -> None:
        one = End(1)
        async with started(one, meet=False):
            others.append(await asyncio.to_thread(Other, 2, {1: one.address}))
            one.transport.set_peers({2: others[0].address})
            await heartbeat_answered(one, 2, 1)
            others[0].process.send_signal(signal.SIGSTOP)
            for index in range(1, 41):
                one.transport.send(2, one.entries(2, index, bytes(1 << 20)))
            await asyncio.sleep(1.5)
            assert one.transport.connected == [2]
            await until(lambda: not one.transport.connected, "silence was noticed", within_s=3)
            assert one.transport.counters.silent_connections >= 1
            others[0].process.send_signal(signal.SIGCONT)
            await heartbeat_answered(one, 2, 2)

    uvloop.run(scenario())


def test_stopping_does_not_wait_for_a_peer_that_takes_nothing(others: list[Other], run: Run) -> None:
    async def scenario() -> None:
        one = End(1)
        async with started(one, meet=False):
            others.append(await asyncio.to_thread(Other, 2, {1: one.address}))
            one.transport.set_peers({2: others[0].address})
            await heartbeat_answered(one, 2, 1)
            others[0].process.send_signal(signal.SIGSTOP)
            for index in range(1, 15):
                one.transport.send(2, one.entries(2, index, bytes(1 << 20)))
            await asyncio.wait_for(one.transport.stop(), 2)

    run(scenario())


def test_an_idle_connection_stays(others: list[Other]) -> None:
    async def scenario() -> None:
        one = End(1)
        async with started(one, meet=False):
            others.append(await asyncio.to_thread(Other, 2, {1: one.address}))
            one.transport.set_peers({2: others[0].address})
            await heartbeat_answered(one, 2, 1)
            await asyncio.sleep(4.2)
            assert one.transport.counters.connections_lost == 0
            assert one.transport.counters.silent_connections == 0
            assert one.connects == [2]

    uvloop.run(scenario())
