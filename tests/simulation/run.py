"""One seed, one run: faults for so many steps, then healing, then everything is drained and judged."""

import zlib
from dataclasses import dataclass, field

from broker.raft.configuration import GroupId
from broker.raft.entry import Kind
from tests.simulation.administrator import Administrator
from tests.simulation.bugs import BUGS, SOUND
from tests.simulation.checks import Violation
from tests.simulation.clients import Consumer, EndReader, PipelinedProducer, Producer
from tests.simulation.faults import Faults
from tests.simulation.world import World

HEALING_S = 40


@dataclass(frozen=True, slots=True)
class Result:
    seed: int
    trace_hash: int
    violations: tuple[str, ...]
    stats: dict[str, int] = field(default_factory=dict)


def run(seed: int, steps: int = 6000, bug: str | None = None, *, contract: bool = True) -> Result:
    """`contract=False`: do not look at disks behind messages, so that only what goes wrong later counts."""
    world = World(seed, BUGS[bug] if bug is not None else SOUND, contract=contract)
    violations: tuple[str, ...] = ()
    try:
        producers = _people(world)
        faults = Faults(world)
        administrator = Administrator(world)
        while world.steps < steps:
            world.step()
        for producer in producers:
            producer.stopped = True
        faults.heal()
        administrator.careless = 0.0
        _converge(world)
        for group_id in world.placement:
            _drain(world, group_id)
    except Violation as violation:
        violations = (str(violation),)
    for agreed in world.checks.groups.values():
        for entry in agreed.entries.values():
            world.trace = zlib.crc32(b"%d %d %d" % (entry.index, entry.term, entry.base_offset), world.trace)
    stats = {**world.stats, "steps": world.steps, "simulated_ms": world.time // 1000}
    return Result(seed, world.trace, violations, stats)


def _people(world: World) -> list[Producer | PipelinedProducer]:
    producers: list[Producer | PipelinedProducer] = []
    for group_id in world.placement:
        for number, kind in enumerate(("stamped", "stamped", "keyed", "keyed", "plain")):
            producers.append(Producer(world, group_id, number, kind))
        producers.append(PipelinedProducer(world, group_id, len(producers)))
        Consumer(world, group_id)
        EndReader(world, group_id)
    return producers


def _converge(world: World) -> None:
    """With everything healed, all members must agree within a bounded time."""
    deadline = world.time + HEALING_S * 1_000_000
    while world.time < deadline:
        world.run_until(world.time + 1_000_000)
        if all(_converged(world, group_id) for group_id in world.placement):
            return
    raise Violation("bounded unavailability", f"not converged {HEALING_S} s after healing")


def _converged(world: World, group_id: GroupId) -> bool:
    leading = world.leader_of(group_id)
    if leading is None:
        return False
    group = leading[1]
    members = group.configuration.members
    if [m.broker_id for m in group.configuration.voters] != world.placement[group_id] or group.configuration.learners:
        return False
    for member in members:
        node = world.brokers[member.broker_id].node
        replica = node.groups.get(group_id) if node is not None else None
        if world.brokers[member.broker_id].disk.files[group_id].damaged:
            return False
        if replica is None or replica.me != member or replica.applied != group.log.last_index:
            return False
    return True


def _drain(world: World, group_id: GroupId) -> None:
    for broker_id in world.placement[group_id]:
        broker = world.brokers[broker_id]
        assert broker.node is not None
        group = broker.node.groups[group_id]
        entries = broker.disk.files[group_id].entries.values()
        values = {
            e.base_offset: e.body
            for e in entries
            if e.kind is Kind.MESSAGES and isinstance(e.body, bytes) and e.base_offset >= group.log.start_offset
        }
        world.checks.drained(group_id, values, group.log.start_offset)
