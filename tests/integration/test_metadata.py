"""The metadata database as the managers use it: migrations, fencing, confirmed commits, ids, session tokens."""

import asyncio
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import psycopg2
import pytest
import structlog
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import select, text, update
from sqlalchemy.orm import Session

import db.models
from db import broker_registry, catalog, cursors
from db.catalog import take_ids
from db.migrate import config, migrate
from db.models import Base, ManagerMetadata, PartitionMetadata, PartitionStatsHistoryRow
from db.primary import Fenced, Primary
from db.registrations import RegistrationResult, WantedConsumer, WantedProducer, register
from db.session_tokens import wait_for_replay
from db.standby import Standby
from db.stats_listings import LISTINGS
from myqueue.protocol.errors import JobRunning, MetadataUnavailable, RunEnded
from myqueue.protocol.internal import PartitionReport
from myqueue.protocol.limits import MAX_PRODUCER_EPOCH
from myqueue.protocol.models import BeginRun, CommitOffset, EndRun, RunResults
from myqueue.protocol.stats_queries import ListRuns
from myqueue.protocol.token import Token
from stack.local import LocalStack
from tests.integration.conftest import address
from tests.waiting import until
from write_manager.cursors import Cursors
from write_manager.job_results import JobResults
from write_manager.job_runs import JobRuns
from write_manager.stats_history import HistoryTiers


def added_consumer(session: Session, topic: db.models.TopicRow) -> int:
    [stored] = register(session, [WantedConsumer(topic.topic_id, topic.name, None, None, {0: 0})])
    assert isinstance(stored, RegistrationResult)
    return stored.id


@contextmanager
def replay_paused(stack: LocalStack, name: str) -> Iterator[None]:
    connection = psycopg2.connect(
        host="127.0.0.1",
        port=stack.port_of(name),
        user="postgres",
        password=stack.secrets.admin_password,
        dbname="postgres",
    )
    connection.autocommit = True
    cursor = connection.cursor()
    cursor.execute("SELECT pg_wal_replay_pause()")

    def is_paused() -> bool:
        cursor.execute("SELECT pg_get_wal_replay_pause_state()")
        return cursor.fetchone() == ("paused",)

    try:
        until(is_paused, within_s=5, what="replay pauses")
        yield
    finally:
        cursor.execute("SELECT pg_wal_replay_resume()")
        connection.close()


def test_models_and_migrations_agree(primary: Primary) -> None:
    with primary.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_server_default": True})
        assert compare_metadata(context, Base.metadata) == []


def test_migrations_run_once_however_many_start_at_once(trio: LocalStack, primary: Primary) -> None:
    with primary.engine.begin() as connection:
        Base.metadata.drop_all(connection)
        connection.execute(text("DROP TABLE alembic_version"))
    failures: list[Exception] = []

    def start() -> None:
        opened = Primary(address(trio), "test", on_fenced=lambda: None)
        try:
            migrate(opened.engine)
        except Exception as error:  # noqa: BLE001 shown by the assertion
            failures.append(error)
        finally:
            opened.close()

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failures == []
    with primary.engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM alembic_version")).scalar() == 1


def test_rows_of_the_release_before_survive_the_newest_migration(primary: Primary) -> None:
    with primary.engine.begin() as connection:
        Base.metadata.drop_all(connection)
        connection.execute(text("DROP TABLE alembic_version"))
        settings = config()
        settings.attributes["connection"] = connection
        command.upgrade(settings, "0002")
        for insert in (
            "INSERT INTO topic (name, topic_id, replication) VALUES ('t', gen_random_uuid(), 1)",
            "INSERT INTO producer_metadata (producer_id, topic_name, name) VALUES (1000, 't', 'p')",
            "INSERT INTO consumer (consumer_id, topic_name) VALUES (1000, 't')",
            "INSERT INTO broker_metadata (broker_id, endpoint, raft_address, hostname, incarnation, status,"
            " last_heartbeat) VALUES (1, 'http://b:1', 'b:2', 'b', 'f', 'active', now())",
        ):
            connection.execute(text(insert))
    migrate(primary.engine)
    primary.take_over("test")
    with primary.transaction() as transaction:
        session = transaction.session
        assert [catalog.next_epoch(session, 1000) for _ in range(2)] == [0, 1]
        assert [broker.data_address for broker in broker_registry.brokers(session)] == [""]
        row = cursors.load(session, 1000)
        assert row is not None
        assert row.recent_commits == []
        session.execute(text("UPDATE producer_metadata SET epoch = :last"), {"last": MAX_PRODUCER_EPOCH})
        assert catalog.next_epoch(session, 1000) is None
        topic = session.get(db.models.TopicRow, "t")
        assert topic is not None
        reopened = WantedProducer(topic.topic_id, "t", "p", opens=True)
        assert register(session, [reopened] * 2) == [
            RegistrationResult(0, False, 0),
            RegistrationResult(0, False, 1),
        ]  # under another id
        assert register(session, [WantedConsumer(topic.topic_id, "t", "c", None, {0: 7})]) == [
            RegistrationResult(0, True)
        ]
        assert catalog.consumer(session, 1000) is not None


def test_cursors_that_could_not_be_stored_are_stored_later(primary: Primary) -> None:
    """And a consumer that was deleted meanwhile fails no other."""
    topic = db.models.TopicRow(name="kept", topic_id=uuid.uuid4(), replication=1)
    with primary.transaction() as transaction:
        transaction.session.add(topic)
        transaction.session.flush()
        first, second = (added_consumer(transaction.session, topic) for _ in range(2))

    async def main() -> None:
        kept = Cursors(primary, structlog.get_logger(), asyncio.get_running_loop(), lease_s=3, claim_s=10)
        await kept.statuses(first)
        await kept.statuses(second)
        epoch, primary.epoch = primary.epoch, -1  # as if another write manager had taken over
        claiming = asyncio.create_task(kept.claim(second, "r", None, {0: (0, 9)}))
        committing = asyncio.create_task(
            kept.commit(first, "", None, {0: CommitOffset(partition_id=0, offset=5)}, {0: 9})
        )
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await kept.remove(second)
        with pytest.raises(Fenced):
            await claiming
        with pytest.raises(Fenced) as failure:
            await committing
        assert failure.value.outcome == "unknown"
        primary.epoch = epoch
        async with asyncio.timeout(10):
            while (await asyncio.to_thread(stored)) != 5:
                await asyncio.sleep(0.05)
        await kept.commit(first, "", None, {0: CommitOffset(partition_id=0, offset=6)}, {0: 9})
        await asyncio.to_thread(kept.stop)

    def stored() -> int:
        with primary.reading() as session:
            row = cursors.load(session, first)
        assert row is not None
        return row.cursors[0].offset

    asyncio.run(main())
    assert stored() == 6


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def runs_of(primary: Primary, clock: Clock, history_days: float = 7) -> JobRuns:
    return JobRuns(primary, structlog.get_logger(), lease_s=30, history_days=history_days, now_s=clock)


def results_of(primary: Primary, runs: JobRuns, kept: str = "run:7d") -> JobResults:
    tiers = HistoryTiers.parse(kept)
    return JobResults(primary, runs, structlog.get_logger(), history_days=7, tiers=tiers)


def begin(runs: JobRuns, job: str) -> int:
    run, _ = runs.begin(BeginRun(job=job, holder="test"), None)
    return run.run_id


def outcomes(primary: Primary, job: str) -> list[str]:
    """Newest first."""
    with primary.reading() as session:
        listed = LISTINGS["list_runs"].read(session, ListRuns(job=job))
    return [run["outcome"] for run in listed.model_dump()["runs"]]


def test_a_run_that_falls_silent_is_lost(primary: Primary) -> None:
    clock = Clock()
    runs = runs_of(primary, clock)
    first = begin(runs, "silent")
    clock.now_s += 29
    runs.renew(first)
    clock.now_s += 29
    with pytest.raises(JobRunning):
        begin(runs, "silent")
    clock.now_s += 2  # the lease is over, but no other member has asked: one that comes back in time goes on
    runs.renew(first)
    clock.now_s += 31
    second = begin(runs, "silent")
    with pytest.raises(RunEnded) as failure:
        runs.renew(first)
    assert failure.value.details == {"outcome": "lost"}
    with pytest.raises(RunEnded):
        runs.end(first, EndRun(outcome="succeeded"))
    with pytest.raises(RunEnded):
        results_of(primary, runs).apply(first, RunResults())
    clock.now_s += 31
    runs.sweep()
    assert outcomes(primary, "silent") == ["lost", "lost"]
    with pytest.raises(RunEnded):
        runs.renew(second)


def test_a_run_goes_on_under_the_next_write_manager(trio: LocalStack, primary: Primary) -> None:
    """It gets a whole lease: the previous one may have renewed it just before it died."""
    run_id = begin(runs_of(primary, Clock()), "handed_over")
    successor = Primary(address(trio), "successor", on_fenced=lambda: None)
    successor.take_over("successor")
    clock = Clock()
    runs = runs_of(successor, clock)
    with pytest.raises(JobRunning):
        begin(runs, "handed_over")
    with pytest.raises(Fenced):
        runs_of(primary, Clock()).renew(run_id)
    clock.now_s += 29
    runs.sweep()
    runs.renew(run_id)
    runs.end(run_id, EndRun(outcome="succeeded"))
    assert outcomes(successor, "handed_over") == ["succeeded"]
    begin(runs, "handed_over")
    clock.now_s += 31
    runs.sweep()
    assert outcomes(successor, "handed_over") == ["lost", "succeeded"]
    successor.close()


def test_old_runs_and_figures_are_pruned(primary: Primary) -> None:
    clock = Clock()
    topic_id = uuid.uuid4()
    with primary.transaction() as transaction:
        topic = db.models.TopicRow(name="pruned", topic_id=topic_id, replication=1)
        catalog.insert_topic(transaction.session, topic, [[]])
    measure = {"topic": "pruned", "topic_id": topic_id, "partition_id": 0, "beginning_offset": 0, "end_offset": 5}
    measure |= {"from_offset": 0, "to_offset": 5, "messages": 5}

    def found(size: int) -> RunResults:
        return RunResults.model_validate({"replace": True, "partitions": [{**measure, "bytes": size}]})

    runs = runs_of(primary, clock)
    for size, outcome in enumerate(("succeeded", "failed")):
        run_id = begin(runs, "pruned")
        for _ in range(2):
            results_of(primary, runs).apply(run_id, found(size))
        runs.end(run_id, EndRun.model_validate({"outcome": outcome}))

    def kept() -> tuple[list[str], int]:
        with primary.reading() as session:
            asked = select(PartitionStatsHistoryRow).where(PartitionStatsHistoryRow.topic_id == topic_id)
            return outcomes(primary, "pruned"), len(session.scalars(asked).all())

    assert kept() == (["failed", "succeeded"], 4), "also when nothing has changed"
    forgetful = runs_of(primary, clock, history_days=0)
    with primary.transaction() as transaction:
        aged = update(PartitionStatsHistoryRow).where(PartitionStatsHistoryRow.topic_id == topic_id)
        day = PartitionStatsHistoryRow.computed_at - timedelta(days=1)
        transaction.session.execute(aged.values(computed_at=day), execution_options={"synchronize_session": False})
    results_of(primary, forgetful, "run:1d").apply(begin(forgetful, "pruned"), found(7))
    assert kept() == (["running", "succeeded"], 1), "the last success decides when the job is due"


def test_a_topic_stays_while_its_figures_are_stored(primary: Primary) -> None:
    topic_id = uuid.uuid4()
    with primary.transaction() as transaction:
        topic = db.models.TopicRow(name="held", topic_id=topic_id, replication=1)
        catalog.insert_topic(transaction.session, topic, [[], []])
    with primary.transaction() as storing:
        held = catalog.lock_topics(storing.session, ["held", "no-such-topic"])
        assert held == {"held": catalog.LockedTopic(topic_id, 2)}
        with pytest.raises(MetadataUnavailable), primary.transaction() as deleting:
            catalog.delete_topic(deleting.session, "held")
        with primary.transaction() as transaction:  # no other transaction waits
            added_consumer(transaction.session, topic)
            other = db.models.TopicRow(name="beside-held", topic_id=uuid.uuid4(), replication=1)
            catalog.insert_topic(transaction.session, other, [[]])
    with primary.transaction() as deleting:
        catalog.delete_topic(deleting.session, "held")
        assert catalog.lock_topics(deleting.session, ["held"]) == {}


def test_reports_of_leaders_leave_the_measured_size_alone(primary: Primary) -> None:
    topic_id = uuid.uuid4()
    report: PartitionReport = {
        "topic_id": str(topic_id),
        "partition_id": 0,
        "incarnation": "f",
        "role": "leader",
        "term": 3,
        "configuration": None,
        "beginning_offset": 0,
        "end_offset": 99,
        "size_bytes": 1000,
    }
    with primary.transaction() as transaction:
        session = transaction.session
        topic = db.models.TopicRow(name="sized", topic_id=topic_id, replication=1)
        catalog.insert_topic(session, topic, [[]])
        broker_registry.save_broker(
            session, broker_registry.StoredBroker(77, "http://b:77", "b:78", "", "b", "f", "active")
        )
    measure = {"topic": "sized", "topic_id": topic_id, "partition_id": 0, "beginning_offset": 0, "end_offset": 9}
    measure |= {"from_offset": 2, "to_offset": 9, "messages": 7}
    runs = runs_of(primary, Clock())
    results = results_of(primary, runs)
    results.apply(begin(runs, "sized"), RunResults.model_validate({"replace": True, "partitions": [measure]}))
    with primary.transaction() as transaction:
        session = transaction.session
        catalog.record_reports(session, {str(topic_id): "sized"}, {77: [report]}, {})
        row = session.scalars(select(PartitionMetadata).where(PartitionMetadata.topic_name == "sized")).one()
        assert (row.size, row.end_offset, row.broker_id) == (7, 99, 77)


def test_ids_count_from_zero_without_holes(primary: Primary) -> None:
    taken = []
    for rolled_back in (False, True, False):
        with pytest.MonkeyPatch.context(), _maybe_failing(rolled_back), primary.transaction() as transaction:
            first = take_ids(transaction.session, "thing", 2)
            if rolled_back:
                raise RuntimeError("changed my mind")
            taken.append(first)
    assert taken == [0, 2]


@contextmanager
def _maybe_failing(fails: bool) -> Iterator[None]:
    if not fails:
        yield
        return
    with pytest.raises(RuntimeError, match="changed my mind"):
        yield


def test_a_replaced_write_manager_cannot_write(trio: LocalStack, primary: Primary) -> None:
    events: list[str] = []
    old = Primary(address(trio), "old", on_fenced=lambda: events.append("fenced"))
    old.take_over("old")
    primary.take_over("new")
    with pytest.raises(Fenced), old.transaction() as transaction:
        take_ids(transaction.session, "stolen")
    assert events == ["fenced"]
    assert old.problem() == "another write manager has taken over"
    with primary.transaction() as transaction:
        assert take_ids(transaction.session, "stolen") == 0
    old.close()


def test_a_read_with_a_token_waits_for_its_standby(trio: LocalStack, primary: Primary) -> None:
    standby = Standby(address(trio, "postgres-2"), "test")
    with replay_paused(trio, "postgres-2"):
        token = _write(primary, "while-paused")
        with standby.reading() as session:
            assert not wait_for_replay(session, token, 0.2)
    with standby.reading() as session:
        assert wait_for_replay(session, token, 5)
        assert session.scalar(select(ManagerMetadata.name).where(ManagerMetadata.name == "while-paused"))
    standby.close()


def test_a_write_is_acknowledged_only_when_a_standby_has_it(trio: LocalStack, primary: Primary) -> None:
    trio.stop("postgres-2")
    _write(primary, "one-standby-left")
    trio.stop("postgres-3")
    with pytest.raises(MetadataUnavailable) as failure:
        _write(primary, "no-standby-left")
    assert failure.value.outcome == "unknown"
    trio.start("postgres-2")

    def confirms() -> bool:
        try:
            return bool(_write(primary, "standby-back"))
        except MetadataUnavailable:
            return False

    until(confirms, within_s=20, what="a standby confirms again")
    trio.start("postgres-3")


def _write(primary: Primary, name: str) -> Token:
    with primary.transaction() as transaction:
        transaction.session.execute(
            text(
                "INSERT INTO manager_metadata (name, endpoint, status, last_heartbeat)"
                " VALUES (:name, '', 'active', now()) ON CONFLICT (name) DO UPDATE SET last_heartbeat = now()"
            ),
            {"name": name},
        )
    assert transaction.token is not None
    return transaction.token


def test_a_restarted_primary_costs_no_failed_transaction(trio: LocalStack, primary: Primary) -> None:
    """Pooled connections died with the old process; the next transaction must not notice."""
    _write(primary, "before-the-restart")
    trio.stop("postgres-1")
    trio.start("postgres-1")

    def accepts() -> bool:
        fresh = Primary(address(trio), "fresh", on_fenced=lambda: None)
        fresh.epoch = primary.epoch
        try:
            return bool(_write(fresh, "fresh"))
        except MetadataUnavailable:
            return False
        finally:
            fresh.close()

    until(accepts, within_s=30, what="the primary takes writes again")
    _write(primary, "after-the-restart")
    with primary.reading() as session:
        assert session.scalar(select(ManagerMetadata.name).where(ManagerMetadata.name == "after-the-restart"))
