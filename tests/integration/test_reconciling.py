"""Replicas, brokers and liveness as the write manager keeps them, while PostgreSQL confirms nothing or is away."""

import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import psycopg2
import pytest
import structlog
from sqlalchemy import select

from db import broker_registry, catalog
from db.models import BrokerMetadata, PartitionMetadata, TopicRow
from db.primary import Primary
from myqueue.protocol.errors import MetadataUnavailable
from myqueue.protocol.internal import BrokerHeartbeat, BrokerRegistration, MemberName, PartitionReport
from service.calls import Caller
from stack.local import LocalStack
from tests.waiting import until
from write_manager.broker_commands import BrokerCommands
from write_manager.brokers import Brokers
from write_manager.heartbeats import AllowedNetworks, Heartbeats
from write_manager.metadata_cache import MetadataCache
from write_manager.read_managers import ReadManagers
from write_manager.reconciler import Reconciler
from write_manager.topics import Topics

HEARTBEAT: BrokerHeartbeat = {"incarnation": "a" * 16, "clock_ms": 0, "partitions": []}


@contextmanager
def unconfirmed(stack: LocalStack) -> Iterator[None]:
    """Commits wait for a standby that does not exist: each of them has an unknown outcome."""
    connection = psycopg2.connect(
        host="127.0.0.1",
        port=stack.port_of("postgres-1"),
        user="postgres",
        password=stack.secrets.admin_password,
        dbname="postgres",
    )
    connection.autocommit = True
    cursor = connection.cursor()

    def names(wanted: str) -> None:
        def are_set() -> bool:
            cursor.execute("SELECT setting = %s FROM pg_settings WHERE name = 'synchronous_standby_names'", (wanted,))
            return cursor.fetchone() == (True,)

        cursor.execute("SELECT pg_reload_conf()")
        until(are_set, within_s=5, what="the setting is read")

    def confirms() -> bool:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming' AND sync_state IN ('sync', 'quorum')"
        )
        return cursor.fetchone() != (0,)

    cursor.execute("SHOW synchronous_standby_names")
    row = cursor.fetchone()
    assert row is not None
    cursor.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    names("nobody")
    try:
        yield
    finally:
        cursor.execute("ALTER SYSTEM RESET synchronous_standby_names")
        names(row[0])
        until(confirms, within_s=20, what="a standby confirms again")
        connection.close()


class Manager:
    """The write manager's parts around the catalog, without its listeners. Its brokers exist only on paper."""

    def __init__(self, primary: Primary, ttl_s: float) -> None:
        log = structlog.get_logger()
        self.primary = primary
        self.cache = MetadataCache(primary, nameless_ttl_s=3600)
        self.brokers = Brokers(primary, self.cache, log, ttl_s=ttl_s, heartbeat_interval_s=ttl_s / 5)
        networks = AllowedNetworks(["127.0.0.0/8"])
        self.heartbeats = Heartbeats(primary, self.cache, self.brokers, ReadManagers(ttl_s), networks, log, ttl_s=ttl_s)
        commands = BrokerCommands(primary, Caller("secret"), log)
        self.topics = Topics(
            primary,
            self.cache,
            self.brokers,
            commands,
            log,
            max_partitions=100,
            broker_timeout_s=0.2,
            check_verified=lambda: None,
        )
        self.reconciler = Reconciler(
            primary, self.cache, self.brokers, self.heartbeats, self.topics, commands, log, timeout_s=0.2, settle_s=5
        )
        with primary.reading() as session:
            self.cache.load(session)
        self.heartbeats.load()

    def await_death(self, broker_id: int) -> None:
        """The others send heartbeats. The job that stores what was noticed runs afterwards, as if in a thread."""

        def is_dead() -> bool:
            for other in {1, 2, 3} - {broker_id}:
                self.brokers.heartbeat(other, HEARTBEAT)
            self.heartbeats.sweep()
            return broker_id not in self.brokers.active_ids()

        until(is_dead, within_s=10, what=f"broker {broker_id} is missed", pause_s=0.1)
        with suppress(MetadataUnavailable):
            self.heartbeats.store()

    def stored_brokers(self) -> dict[int, str]:
        with self.primary.reading() as session:
            return {row.broker_id: row.status for row in broker_registry.brokers(session)}

    def stored_replicas(self, topic: str) -> list[list[int]]:
        asked = select(PartitionMetadata.replicas).where(PartitionMetadata.topic_name == topic)
        with self.primary.reading() as session:
            return [list(replicas) for replicas in session.scalars(asked.order_by(PartitionMetadata.partition_id))]


def registration(broker_id: int | None, incarnation: str = "a" * 16, port: int | None = None) -> BrokerRegistration:
    at = port or 40000 + (broker_id or 0)
    return {
        "broker_id": broker_id,
        "endpoint": f"http://127.0.0.1:{at}",
        "raft_address": f"127.0.0.1:{at + 100}",
        "data_address": "",
        "hostname": "here",
        "incarnation": incarnation,
        "clock_ms": time.time_ns() // 1_000_000,
        "partitions": [],
    }


@pytest.fixture
def manager(primary: Primary) -> Manager:
    """Brokers 1 to 3, alive."""
    with primary.transaction() as transaction:
        transaction.session.query(TopicRow).delete()
        transaction.session.query(BrokerMetadata).delete()
    made = Manager(primary, ttl_s=1.0)
    for broker_id in (1, 2, 3):
        made.heartbeats.register_broker(registration(broker_id))
    return made


def narrow(manager: Manager, name: str, replicas: list[int], *, replication: int = 3) -> None:
    """A topic for three replicas that was made while brokers were away."""
    voters = [[(b, "a" * 16) for b in replicas]]
    row = TopicRow(name=name, topic_id=uuid.uuid4(), replication=replication)
    with manager.primary.transaction() as transaction:
        catalog.insert_topic(transaction.session, row, voters)
        record = catalog.topic_record(transaction.session, name)
    assert record is not None
    manager.cache.add_topic(record, dict(enumerate(map(tuple, voters))))


def test_a_replica_of_unknown_outcome_is_added_once(trio: LocalStack, manager: Manager) -> None:
    narrow(manager, "widened", [1])
    topic = manager.cache.topics["widened"]
    with unconfirmed(trio), pytest.raises(MetadataUnavailable) as failure:
        manager.reconciler.add_replica(topic, topic.partitions[0])
    assert failure.value.outcome == "unknown"
    for _ in range(4):  # more rounds than there are brokers
        manager.reconciler.reconcile()
    assert manager.stored_replicas("widened") == [[1, 2, 3]]
    assert topic.partitions[0].replicas == (1, 2, 3)


def test_one_topic_that_fails_does_not_keep_the_others_from_being_reconciled(manager: Manager) -> None:
    """A row that another transaction has locked, in the first and in the last of the topics."""
    for name in ("first", "second", "third"):
        narrow(manager, name, [1, 2])
    with manager.primary.engine.begin() as blocking:
        locked = select(PartitionMetadata.id).where(PartitionMetadata.topic_name.in_(["first", "third"]))
        blocking.execute(locked.with_for_update())
        with structlog.testing.capture_logs() as logs:
            manager.reconciler.reconcile()
        assert manager.stored_replicas("second") == [[1, 2, 3]]
        failed = [entry["topic"] for entry in logs if entry["event"] == "topic not reconciled"]
        assert sorted(failed) == ["first", "third"]
    manager.reconciler.reconcile()
    assert manager.stored_replicas("first") == manager.stored_replicas("third") == [[1, 2, 3]]


def test_a_broker_that_is_back_is_used_while_postgresql_is_away(trio: LocalStack, manager: Manager) -> None:
    brokers, heartbeats = manager.brokers, manager.heartbeats
    manager.await_death(1)
    trio.stop("postgres-1")
    try:
        manager.await_death(2)
        brokers.heartbeat(1, HEARTBEAT)
        assert brokers.active_ids() == {1, 3}, "one that was paused"
        assert heartbeats.register_broker(registration(2))["broker_id"] == 2
        assert brokers.active_ids() == {1, 2, 3}, "one that was restarted"
        for new in (registration(2, incarnation="b" * 16), registration(2, port=45000), registration(4)):
            with pytest.raises(MetadataUnavailable):
                heartbeats.register_broker(new)
        assert brokers.endpoint(2) == "http://127.0.0.1:40002", "what is not stored does not count"
        manager.await_death(3)
    finally:
        trio.start("postgres-1")

    def is_stored() -> bool:
        try:
            heartbeats.store()
            return manager.stored_brokers() == {1: "active", 2: "active", 3: "inactive"}
        except MetadataUnavailable:
            return False

    until(is_stored, within_s=20, what="PostgreSQL has what happened meanwhile")


def test_a_status_of_unknown_outcome_is_stored_again(trio: LocalStack, manager: Manager) -> None:
    """Otherwise PostgreSQL says for ever that a broker is dead which was away for a moment."""
    with unconfirmed(trio):
        manager.await_death(3)
        manager.brokers.heartbeat(3, HEARTBEAT)
    until(lambda: manager.stored_brokers()[3] == "inactive", within_s=5, what="the commit is done after all")
    manager.heartbeats.store()
    assert manager.stored_brokers()[3] == "active"


def test_a_registration_of_unknown_outcome_can_be_repeated(trio: LocalStack, manager: Manager) -> None:
    new = registration(None, port=46000)
    with unconfirmed(trio), ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(manager.heartbeats.register_broker, new)
        until(lambda: manager.brokers._registering.locked() or waiting.done(), within_s=5, what="it is being stored")
        with manager.cache.changing():
            assert not waiting.done(), "changes of the catalog do not wait for it"
        with pytest.raises(MetadataUnavailable) as failure:
            waiting.result()
    assert failure.value.outcome == "unknown"
    assert manager.heartbeats.register_broker(new)["broker_id"] == 4
    assert sorted(manager.stored_brokers()) == [1, 2, 3, 4]


def leading(manager: Manager, topic: str, incarnation: str, term: int, end_offset: int) -> BrokerRegistration:
    """Broker 1 comes with this replica, which leads on its own."""
    me: MemberName = {"broker_id": 1, "incarnation": incarnation}
    report: PartitionReport = {
        "topic_id": str(manager.cache.topics[topic].topic_id),
        "partition_id": 0,
        "incarnation": incarnation,
        "role": "leader",
        "term": term,
        "configuration": {"index": 0, "voters": [me], "learners": []},
        "beginning_offset": 0,
        "end_offset": end_offset,
        "size_bytes": 100 * end_offset,
    }
    return {**registration(1, incarnation), "partitions": [report]}


def test_a_log_that_was_thought_lost_counts_again_when_it_is_put_back(manager: Manager) -> None:
    """Its term and its end are lower than those of the log that began meanwhile."""
    narrow(manager, "remounted", [1])
    [partition] = manager.cache.topics["remounted"].partitions
    expected = partition.initial_voters
    manager.heartbeats.register_broker(registration(1, "b" * 16))
    manager.reconciler.restart_partition(manager.cache.topics["remounted"], partition, expected, ((1, "b" * 16),))
    for incarnation, term, end_offset in (("b" * 16, 7, 10), ("a" * 16, 3, 6)):
        manager.heartbeats.register_broker(leading(manager, "remounted", incarnation, term, end_offset))
        manager.heartbeats.store()
        assert (partition.leader, partition.term, partition.end_offset) == (1, term, end_offset)
        with manager.primary.reading() as session:
            record = catalog.topic_record(session, "remounted")
        assert record is not None
        [stored] = record["partitions"]
        assert (stored["broker_id"], stored["term"], stored["end_offset"]) == (1, term, end_offset)
