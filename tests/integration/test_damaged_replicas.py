"""A damaged replica as the write manager handles it: reported, removed from its group, then rebuilt."""

import json
from collections.abc import Iterator

import pytest

from db import catalog
from db.models import BrokerMetadata, TopicRow
from db.primary import Primary
from myqueue.protocol.internal import BrokerRegistration, Configuration, MemberName, PartitionReport
from tests.integration.stand_in_manager import StandInManager
from tests.integration.test_reconciling import HEARTBEAT, Manager, narrow, registration

OWN = "a" * 16
WHY = "entry 7 does not match its checksum"


@pytest.fixture
def brokers() -> Iterator[dict[int, StandInManager]]:
    """Internal listeners that take every call."""
    made = {broker_id: StandInManager(f"broker-{broker_id}") for broker_id in (1, 2)}
    for each in made.values():
        each.behaviour.body = b'{"status": "success"}'
        each.start()
    yield made
    for each in made.values():
        each.stop()


@pytest.fixture
def manager(primary: Primary, brokers: dict[int, StandInManager]) -> Manager:
    """Brokers 1 and 2, and a topic of two replicas that broker 1 leads."""
    with primary.transaction() as transaction:
        transaction.session.query(TopicRow).delete()
        transaction.session.query(BrokerMetadata).delete()
    made = Manager(primary, ttl_s=60.0)
    for broker_id, each in brokers.items():
        made.heartbeats.register_broker(registration(broker_id, port=each.port))
    narrow(made, "pair", [1, 2], replication=2)
    made.brokers.heartbeat(1, {**HEARTBEAT, "partitions": [leading(made, group([1, 2]))]})
    made.brokers.heartbeat(2, {**HEARTBEAT, "partitions": [following(made)]})
    return made


def group(voters: list[int], index: int = 0) -> Configuration:
    names: list[MemberName] = [{"broker_id": b, "incarnation": OWN} for b in voters]
    return {"index": index, "voters": names, "learners": []}


def following(manager: Manager, damaged: str | None = None, incarnation: str = OWN) -> PartitionReport:
    return {
        "topic_id": str(manager.cache.topics["pair"].topic_id),
        "partition_id": 0,
        "incarnation": incarnation,
        "role": "follower",
        "term": 3,
        "configuration": None,
        "beginning_offset": 0,
        "end_offset": 9,
        "size_bytes": 900,
        "damaged": damaged,
    }


def leading(manager: Manager, configuration: Configuration) -> PartitionReport:
    return {**following(manager), "role": "leader", "configuration": configuration}


def reconcile(manager: Manager, brokers: dict[int, StandInManager]) -> list[tuple[int, str, dict[str, object]]]:
    """One round: the broker, the last part of the path and the body of each call."""
    for each in brokers.values():
        each.received.clear()
    manager.reconciler.reconcile()
    return [
        (broker_id, call.target.rsplit("/", 1)[1], json.loads(call.body))
        for broker_id, each in brokers.items()
        for call in each.received
    ]


def stored_damage(manager: Manager) -> list[tuple[int, str]]:
    manager.heartbeats.store()
    with manager.primary.reading() as session:
        record = catalog.topic_record(session, "pair")
    assert record is not None
    return [(each["broker_id"], each["reason"]) for each in record["partitions"][0]["damaged"]]


def test_a_damaged_replica_is_removed_from_its_group_and_only_then_rebuilt(
    manager: Manager, brokers: dict[int, StandInManager]
) -> None:
    assert reconcile(manager, brokers) == []
    assert manager.brokers.damaged_count() == 0
    manager.brokers.heartbeat(2, {**HEARTBEAT, "partitions": [following(manager, WHY)]})
    member = {"broker_id": 2, "incarnation": OWN}
    removal = (1, "members", {"step": "remove", "member": member, "expected": 0})
    assert reconcile(manager, brokers) == [removal], "not rebuilt while its group counts on it"
    assert reconcile(manager, brokers) == [removal]
    assert manager.brokers.damaged_count() == 1
    assert stored_damage(manager) == [(2, WHY)]
    manager.brokers.heartbeat(1, {**HEARTBEAT, "partitions": [leading(manager, group([1], index=12))]})
    assert reconcile(manager, brokers) == [(2, "rebuild", {"incarnation": OWN})]
    rebuilt: PartitionReport = {
        **following(manager, incarnation="b" * 16),
        "role": "learner",
        "term": 0,
        "end_offset": 0,
        "size_bytes": 0,
    }
    manager.brokers.heartbeat(2, {**HEARTBEAT, "partitions": [rebuilt]})
    [(broker_id, route, body)] = reconcile(manager, brokers)
    assert (broker_id, route, body["step"]) == (1, "members", "add_learner")
    assert manager.brokers.damaged_count() == 0
    assert stored_damage(manager) == []


def test_without_a_leader_nothing_is_rebuilt(manager: Manager, brokers: dict[int, StandInManager]) -> None:
    """The leader itself finds damage: it reports itself as a follower, and no other one leads yet."""
    manager.brokers.heartbeat(1, {**HEARTBEAT, "partitions": [following(manager, WHY)]})
    assert manager.cache.topics["pair"].partitions[0].leader is None
    assert reconcile(manager, brokers) == []


def test_a_new_write_manager_starts_with_what_was_stored(
    manager: Manager, brokers: dict[int, StandInManager], primary: Primary
) -> None:
    manager.brokers.heartbeat(2, {**HEARTBEAT, "partitions": [following(manager, WHY)]})
    assert stored_damage(manager) == [(2, WHY)]
    successor = Manager(primary, ttl_s=60.0)
    assert successor.cache.topics["pair"].partitions[0].damaged == {2: WHY}
    emptied: BrokerRegistration = registration(2, "b" * 16, port=brokers[2].port)
    successor.heartbeats.register_broker(emptied)
    assert stored_damage(successor) == [], "a broker that holds nothing of it holds nothing damaged"


def test_the_damage_of_one_report_is_not_lost_when_it_cannot_be_stored(manager: Manager) -> None:
    manager.brokers.heartbeat(2, {**HEARTBEAT, "partitions": [following(manager, WHY)]})
    manager.brokers.put_back(manager.brokers.take_changes())
    assert stored_damage(manager) == [(2, WHY)]
