"""Replica placement: which brokers get the replicas of new partitions. No IO."""

from collections.abc import Mapping


def place_replicas(
    partitions: int, replication: int, leaders: Mapping[int, int], replicas: Mapping[int, int]
) -> list[list[int]]:
    """A list of distinct brokers for each partition, the preferred leader first.

    `leaders` and `replicas` are how many each live broker has already. Leaders are spread first, because they do the
    work; then replicas. Equal brokers take turns by id, so the answer is the same for the same input.
    """
    if not 1 <= replication <= len(leaders):
        raise ValueError(f"replication {replication} needs as many live brokers, there are {len(leaders)}")
    leading, holding = dict(leaders), {broker: replicas.get(broker, 0) for broker in leaders}
    placed = []
    for _ in range(partitions):
        leader = min(leading, key=lambda broker: (leading[broker], holding[broker], broker))
        others = sorted(
            (broker for broker in holding if broker != leader), key=lambda broker: (holding[broker], broker)
        )
        chosen = [leader, *others[: replication - 1]]
        leading[leader] += 1
        for broker in chosen:
            holding[broker] += 1
        placed.append(chosen)
    return placed
