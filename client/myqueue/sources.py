"""Which replica of a partition to fetch from: the leader, and another one for a while when it does not answer. Pure."""

from dataclasses import dataclass

from myqueue.routing import RoutingTable

ELSEWHERE_S = 10.0  # a replica that lost touch with its leader answers, too, but brings nothing new


@dataclass(slots=True)
class Source:
    """Of one partition."""

    broker_id: int | None = None
    leader: int | None = None  # as it was known when the broker was chosen
    until: float = 0.0

    def choose(self, table: RoutingTable, partition: int, now: float) -> int | None:
        leader = table.leaders[partition]
        if self.broker_id is None or leader != self.leader or now >= self.until:
            self.leader = leader
            self.broker_id = leader if leader is not None else next(iter(table.replicas[partition]), None)
            self.until = now + ELSEWHERE_S
        return self.broker_id

    def failed(self, table: RoutingTable, partition: int, now: float) -> None:
        replicas = table.replicas[partition]
        if self.broker_id in replicas:
            self.broker_id = replicas[(replicas.index(self.broker_id) + 1) % len(replicas)]
        else:
            self.broker_id = next(iter(replicas), None)
        self.until = now + ELSEWHERE_S
