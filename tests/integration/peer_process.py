"""A process with nothing but a transport: python -m tests.integration.peer_process id port peer=address …

It answers every heartbeat.
"""

import asyncio
import sys

import uvloop

from broker.peers.transport import Transport
from broker.raft.messages import Frame, Heartbeat, HeartbeatReply
from service.logs import configure

SECRET = "a secret of the tests"


async def run(broker_id: int, port: int, peers: dict[int, str]) -> None:
    def answer(frame: Frame) -> None:
        if isinstance(frame, Heartbeat):
            reply = HeartbeatReply(broker_id, 1, frame.session, frame.sent_at, frame.version, ())
            transport.send(frame.broker_id, reply)

    transport = Transport(
        host="127.0.0.1",
        port=port,
        broker_id=lambda: broker_id,
        secret=SECRET,
        log=configure("peer", "error"),
        on_frame=answer,
    )
    transport.set_peers(peers)
    await transport.start()
    print("started", flush=True)
    await asyncio.sleep(60)


if __name__ == "__main__":
    named = dict(argument.split("=") for argument in sys.argv[3:])
    uvloop.run(run(int(sys.argv[1]), int(sys.argv[2]), {int(peer): address for peer, address in named.items()}))
