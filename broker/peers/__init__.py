"""How brokers talk to each other: authenticated connections that carry the frames of the Raft core."""
