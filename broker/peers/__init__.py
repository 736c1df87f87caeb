"""Authenticated connections between brokers that carry the frames of the Raft core."""
