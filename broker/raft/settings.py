"""Times and limits of the core, every default in one place.

The lease is shorter than the shortest election timeout: a leader that lost touch with its majority stops before that
majority can have elected another one, as long as clocks run within 5 % of the same speed. No promise about stored
data depends on that, only that nothing is acknowledged by an old term after a newer one has acknowledged.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    heartbeat_ms: int = 200
    election_min_ms: int = 1000
    election_jitter_ms: int = 1000
    lease_ms: int = 900
    retry_ms: int = 500  # without an answer, what is in flight counts as lost
    append_bytes: int = 1 << 20  # of one Append; one entry always fits
    probe_bytes: int = 1 << 16
    window_messages: int = 64  # Appends in flight to one follower
    window_bytes: int = 4 << 20
    tail_bytes: int = 1 << 18  # applied entries kept in memory for followers that are a little behind
    pending_bytes: int = 16 << 20  # taken and not yet applied
    promote_lag: int = 64  # entries a learner may be behind when it becomes a voter
    keys_window: int = 100_000  # idempotency keys remembered for a partition, the last ones of its log
    producers_window: int = 4_096  # idempotent producers remembered, the last ones to append
    batches_window: int = 8  # batches remembered for each of them
