"""The Raft core alone: three nodes in one thread, no disk, no network; steps a second and the price of idle groups."""

import time
from uuid import UUID

from broker.raft.configuration import GroupId, MemberId, initial_configuration
from broker.raft.effects import Role
from broker.raft.entry import Stamp
from broker.raft.events import EntryCommitted, Propose
from broker.raft.node import Durable, GroupRequest, Node, NodeEvent
from broker.raft.snapshot import new_replica


class Cluster:
    def __init__(self, groups: int) -> None:
        self.ids = [GroupId(UUID(int=1), n) for n in range(groups)]
        self.nodes = {n: Node(n, n, n, 0) for n in (1, 2, 3)}
        self.now = 0
        self.steps = 0
        members = [MemberId(n, n) for n in self.nodes]
        for group_id in self.ids:
            for member in members:
                self.nodes[member.broker_id].open(group_id, member, new_replica(initial_configuration(members)))

    def step(self, broker_id: int, event: NodeEvent) -> None:
        self.nodes[broker_id].step(event, self.now)
        self.steps += 1

    def settle(self) -> int:
        committed = 0
        while True:
            events: list[tuple[int, NodeEvent]] = []
            for broker_id, node in self.nodes.items():
                round_ = node.drain()
                committed += sum(1 for r in round_.resolved if isinstance(r.outcome, EntryCommitted))
                if round_.persists:
                    events.append((broker_id, Durable(round_.number)))
                events.extend((send.broker_id, send.frame) for send in round_.sends)
            if not events:
                return committed
            for broker_id, event in events:
                self.step(broker_id, event)

    def pass_time(self, ms: int, stride: int) -> None:
        until = self.now + ms
        while self.now < until:
            self.now += stride
            for broker_id in self.nodes:
                self.step(broker_id, None)
            self.settle()

    def leader(self, group_id: GroupId) -> int:
        return next(n for n, node in self.nodes.items() if node.groups[group_id].role is Role.LEADER)


def main() -> None:
    for groups in (1, 100, 1000):
        cluster = Cluster(groups)
        cluster.pass_time(4000, 50)
        started = time.process_time()
        cluster.pass_time(10_000, 10)
        idle = (time.process_time() - started) / 10
        print(f"{groups} groups, idle: {idle:.2%} of a core for all three nodes")
        leaders = {group_id: cluster.leader(group_id) for group_id in cluster.ids}
        for together in (1, 16):
            cluster.steps = committed = 0
            started = time.process_time()
            for number in range(4000):
                group_id = cluster.ids[number % groups]
                stamp = Stamp(together, 0, number // groups, crc=1)
                propose = Propose(number, b"x" * 100, 1, 0, stamp)
                cluster.step(leaders[group_id], GroupRequest(group_id, propose))
                if number % together == together - 1:
                    committed += cluster.settle()
                    cluster.now += 1
            seconds = time.process_time() - started
            print(
                f"  {together} at a time: {cluster.steps / seconds:,.0f} steps/s, {committed / seconds:,.0f} commits/s"
            )


if __name__ == "__main__":
    main()
