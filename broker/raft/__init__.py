"""Raft without IO: a pure core that turns frames, requests and time into decisions; a driver carries them out."""
