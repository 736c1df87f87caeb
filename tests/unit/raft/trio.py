"""Three nodes with one group and a perfect network, moved by hand."""

from uuid import UUID

from broker.raft.configuration import GroupId, MemberId, initial_configuration
from broker.raft.context import RaftSettings
from broker.raft.effects import RaftRound, Resolved, Role
from broker.raft.entry import LogEntry
from broker.raft.events import Event, Loaded, Outcome
from broker.raft.group import RaftGroup
from broker.raft.messages import Envelope, Frame
from broker.raft.node import Durable, GroupRequest, Node
from broker.raft.snapshot import Stored, new_replica

GROUP = GroupId(UUID(int=1), 0)


class Trio:
    def __init__(self, settings: RaftSettings | None = None, voters: int = 3) -> None:
        self.now = 0
        self.members = [MemberId(n, 10 + n) for n in range(1, voters + 1)]
        self.nodes: dict[int, Node] = {}
        self.cut_off: set[int] = set()
        self.full: set[int] = set()  # brokers whose disks have no room for messages
        self.stuck: set[int] = set()  # brokers whose disks do not answer
        self.resolved: list[Resolved] = []
        self.rounds: list[tuple[int, RaftRound]] = []
        self.disks: dict[int, dict[int, LogEntry]] = {}
        self._settings = settings
        for member in self.members:
            self.add(member, new_replica(initial_configuration(self.members)))

    def add(self, member: MemberId, stored: Stored) -> None:
        self.disks.pop(member.broker_id, None)
        node = Node(member.broker_id, self.now + member.incarnation, member.broker_id, self.now, self._settings)
        node.open(GROUP, member, stored)
        self.nodes[member.broker_id] = node

    def group(self, broker_id: int) -> RaftGroup:
        return self.nodes[broker_id].groups[GROUP]

    def settle(self) -> None:
        """Every write is synced at once and every frame arrives, until nothing happens any more."""
        busy = True
        while busy:
            busy = False
            for broker_id, node in self.nodes.items():
                round_ = node.drain()
                if not round_:
                    continue
                busy = True
                self.rounds.append((broker_id, round_))
                self.resolved.extend(round_.resolved)
                for persist in round_.persists:
                    for entry in persist.entries:
                        self.disks.setdefault(broker_id, {})[entry.index] = entry
                if round_.persists and broker_id not in self.stuck:
                    node.step(Durable(round_.number), self.now)
                for load in round_.loads:
                    found = tuple(e for i, e in self.disks.get(broker_id, {}).items() if i >= load.first_index)
                    node.step(GroupRequest(GROUP, Loaded(load.to, load.first_index, found)), self.now)
                for send in round_.sends:
                    if broker_id not in self.cut_off and send.broker_id not in self.cut_off:
                        self._deliver(self.nodes[send.broker_id], send.frame)

    def _deliver(self, node: Node, frame: Frame) -> None:
        if isinstance(frame, Envelope) and node.broker_id in self.full:
            node.refuse(frame, self.now)
        else:
            node.step(frame, self.now)

    def pass_time(self, ms: int) -> None:
        until = self.now + ms
        while self.now < until:
            self.now += 20
            for node in self.nodes.values():
                node.step(None, self.now)
            self.settle()

    def leader(self) -> int:
        leaders = [n for n in self.nodes if self.group(n).role is Role.LEADER and n not in self.cut_off]
        assert len(leaders) == 1
        return leaders[0]

    def ask(self, broker_id: int, event: Event) -> list[Outcome]:
        self.resolved.clear()
        self.nodes[broker_id].step(GroupRequest(GROUP, event), self.now)
        self.settle()
        return [resolved.outcome for resolved in self.resolved]
