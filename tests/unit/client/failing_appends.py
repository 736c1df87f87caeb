"""A memory cluster whose first appends fail."""

from myqueue import (
    RetryPolicy,
)
from myqueue.protocol import batch as batches
from tests.unit.client.memory_cluster import MemoryCluster
from tests.unit.client.scripted_server import ScriptedServer, Seen, Step

QUICK = RetryPolicy(deadline_s=3.0, first_pause_s=0.001, longest_pause_s=0.01)
PRODUCE = "/producer/produce"
OPEN = "/v1/topics/orders/producers"
ROUTING = "/v1/routing/orders"


def is_append(seen: Seen) -> bool:
    return seen.method == "POST" and seen.path.endswith("/batches")


def stamps(server: ScriptedServer) -> list[tuple[int, int, int]]:
    """Epoch, sequence and count of the batches that were sent."""
    headers = [batches.decode_header(seen.body) for seen in server.seen if is_append(seen)]
    return [(header.producer_epoch, header.sequence, header.count) for header in headers]


def appends(cluster: MemoryCluster, *first: Step) -> "Failing":
    return Failing(cluster, list(first))


class Failing:
    """The cluster, but the first appends end otherwise. `before` may let them be carried out first."""

    def __init__(self, cluster: MemoryCluster, steps: list[Step], *, carried_out: bool = False) -> None:
        self.cluster, self.steps, self.carried_out = cluster, steps, carried_out

    def __call__(self, seen: Seen) -> Step:
        if is_append(seen) and self.steps:
            if self.carried_out:
                self.cluster(seen)
            return self.steps.pop(0)
        return self.cluster(seen)
