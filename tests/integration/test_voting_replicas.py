"""Which replicas vote, as the write manager lists them: a broker that lost its data does not until it is taken in."""

import pytest

from db import catalog
from db.models import BrokerMetadata, TopicRow
from db.primary import Primary
from myqueue.protocol.internal import BrokerHeartbeat, Configuration, MemberName, PartitionReport
from tests.integration.test_reconciling import HEARTBEAT, Manager, narrow, registration

OWN, NEW = "a" * 16, "b" * 16


@pytest.fixture
def manager(primary: Primary) -> Manager:
    """Brokers 1 and 2, and a topic of two replicas that broker 1 leads."""
    with primary.transaction() as transaction:
        transaction.session.query(TopicRow).delete()
        transaction.session.query(BrokerMetadata).delete()
    made = Manager(primary, ttl_s=60.0)
    for broker_id in (1, 2):
        made.heartbeats.register_broker(registration(broker_id))
    narrow(made, "pair", [1, 2], replication=2)
    return made


def report(manager: Manager, incarnation: str = OWN, configuration: Configuration | None = None) -> PartitionReport:
    return {
        "topic_id": str(manager.cache.topics["pair"].topic_id),
        "partition_id": 0,
        "incarnation": incarnation,
        "role": "follower" if configuration is None else "leader",
        "term": 3,
        "configuration": configuration,
        "beginning_offset": 0,
        "end_offset": 9,
        "size_bytes": 900,
    }


def group(voters: dict[int, str], learners: dict[int, str] | None = None) -> Configuration:
    def named(members: dict[int, str]) -> list[MemberName]:
        return [{"broker_id": b, "incarnation": incarnation} for b, incarnation in members.items()]

    return {"index": 0, "voters": named(voters), "learners": named(learners or {})}


def stored_voters(primary: Primary) -> list[int] | None:
    with primary.reading() as session:
        record = catalog.topic_record(session, "pair")
    assert record is not None
    return record["partitions"][0]["voters"]


def test_a_replica_votes_again_when_its_group_has_taken_it_in(manager: Manager, primary: Primary) -> None:
    assert stored_voters(primary) is None
    manager.brokers.heartbeat(1, {**HEARTBEAT, "partitions": [report(manager, configuration=group({1: OWN, 2: OWN}))]})
    manager.brokers.heartbeat(2, {**HEARTBEAT, "partitions": [report(manager)]})
    manager.heartbeats.store()
    assert stored_voters(primary) == [1, 2]

    manager.heartbeats.register_broker(registration(2, NEW))
    assert stored_voters(primary) == [1], "with its registration, not some time later"
    again: BrokerHeartbeat = {**HEARTBEAT, "incarnation": NEW}
    filling = group({1: OWN}, {2: NEW})
    for configuration, expected in ((filling, [1]), (group({1: OWN, 2: NEW}), [1, 2])):
        manager.brokers.heartbeat(2, {**again, "partitions": [report(manager, NEW)]})
        manager.brokers.heartbeat(1, {**HEARTBEAT, "partitions": [report(manager, configuration=configuration)]})
        manager.heartbeats.store()
        assert stored_voters(primary) == expected
        assert manager.cache.topics["pair"].partitions[0].voters == expected


def test_a_new_write_manager_starts_with_what_was_stored(manager: Manager, primary: Primary) -> None:
    manager.brokers.heartbeat(1, {**HEARTBEAT, "partitions": [report(manager, configuration=group({1: OWN, 2: OWN}))]})
    manager.brokers.put_back(manager.brokers.take_changes())
    manager.heartbeats.store()
    assert stored_voters(primary) == [1], "of the other one nothing was reported yet"
    assert Manager(primary, ttl_s=60.0).cache.topics["pair"].partitions[0].voters == [1]
