"""Raft without IO: a deterministic core that turns frames, requests and time into effects for the driver."""
