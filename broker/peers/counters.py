"""What the transport counts since its start."""

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    sent_frames: int = 0
    sent_bytes: int = 0
    received_frames: int = 0
    received_bytes: int = 0
    dropped_frames: int = 0  # nobody there, or too much waiting for that peer
    unsendable_frames: int = 0  # too large, or an entry without its batch
    connections_made: int = 0
    connections_lost: int = 0
    silent_connections: int = 0  # ended because nothing came any more
    refused_connections: int = 0  # from strangers, or by listeners that could not prove who they are
    bad_messages: int = 0  # connections ended because of what came over them
