"""A standby becomes the primary: old session tokens, the old primary that comes back, standbys that do not follow."""

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import structlog
from sqlalchemy import select, text

from db import cursors
from db.catalog import take_ids
from db.migrate import migrate
from db.models import ManagerMetadata, TimelineSwitch, TopicRow
from db.primary import Primary
from db.session_tokens import wait_for_replay
from db.standby import Standby
from myqueue.protocol.errors import MetadataUnavailable
from myqueue.protocol.models import CommitOffset
from myqueue.protocol.token import Token
from tests.integration.promotable_trio import STREAMING, PromotableTrio, promotable_trio
from tests.integration.test_metadata import _write as write
from tests.integration.test_metadata import added_consumer
from tests.waiting import throughout, until
from write_manager.cursors import Cursors


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[PromotableTrio]:
    with promotable_trio(tmp_path) as started:
        yield started


def active(trio: PromotableTrio, name: str) -> Primary:
    opened = Primary(trio.address(), name, on_fenced=lambda: None)
    migrate(opened.engine)
    until(lambda: took_over(opened, name), within_s=20, what=f"{name} takes over")
    return opened


def took_over(primary: Primary, name: str) -> bool:
    try:
        return bool(primary.take_over(name))
    except MetadataUnavailable:
        return False


def is_seen(standby: Standby, token: Token, name: str, wait_s: float = 5) -> bool:
    """Whether the token was answered; what it stands for is there then."""
    with standby.reading() as session:
        if not wait_for_replay(session, token, wait_s):
            return False
        assert session.scalar(select(ManagerMetadata.name).where(ManagerMetadata.name == name)), "a stale read"
        return True


def read_from(standby: Standby) -> int:
    with standby.reading() as session:
        return int(session.execute(text("SELECT inet_server_port()")).scalar_one())


def write_unconfirmed(trio: PromotableTrio, primary: Primary) -> tuple[int, Token]:
    """While both standbys are paused: the id that a commit took that none of them gets, and a token after it."""
    trio.execute("a", "SELECT pg_terminate_backend(pid) FROM pg_stat_replication")
    with pytest.raises(MetadataUnavailable) as failure, primary.transaction() as transaction:
        lost = take_ids(transaction.session, "promoted", 7)
    assert failure.value.outcome == "unknown"
    for _ in range(2):  # its own log is far ahead of what the new primary will have
        trio.execute("a", "SELECT pg_logical_emit_message(false, '', ''), pg_switch_wal()")
    return lost, Token(1, int(trio.value("a", "SELECT pg_current_wal_lsn() - '0/0'")))


def test_after_a_promotion_old_tokens_are_answered_and_the_old_primary_is_not_used(trio: PromotableTrio) -> None:
    """Ids that were confirmed are not given twice; a commit that was not confirmed may be gone."""
    with (
        closing(active(trio, "first")) as first,
        closing(Standby(trio.address("b", "c"), "reads")) as standbys,
        closing(Standby(trio.address("a", "c"), "reads")) as old,
    ):
        with first.transaction() as transaction:
            before = take_ids(transaction.session, "promoted", 5)
        confirmed = write(first, "confirmed")
        assert read_from(old) == trio.ports["c"]
        with ExitStack() as hanging:
            with trio.paused("b", "c"):
                # A position that was read right after a commit may include what others wrote and no standby has.
                lost, ahead = write_unconfirmed(trio, first)
                hanging.enter_context(trio.paused("a"))
            trio.promote("b")
            trio.follow_primary("c")
            until(lambda: trio.value("b", STREAMING) == 1, within_s=20, what="the other standby streams")
            with closing(active(trio, "second")) as second:
                new = write(second, "after")
                assert new.timeline == confirmed.timeline + 1
                assert new.position < ahead.position, "the test needs a token that the new timeline has not reached"
                assert is_seen(standbys, confirmed, "confirmed")
                assert is_seen(standbys, ahead, "confirmed")
                assert is_seen(standbys, new, "after")
                assert not is_seen(standbys, Token(new.timeline + 1, 0), "", wait_s=0.1)
                with second.transaction() as transaction:
                    ids = take_ids(transaction.session, "promoted")
                    switches = list(transaction.session.scalars(select(TimelineSwitch.timeline)))
                assert before + 5 == ids == lost, "confirmed ids are given once; those of the lost commit again"
                assert switches == [confirmed.timeline]
                old.probe()
        # It goes on as if nothing had happened: it claims to be primary, and its connections work.
        until(lambda: not trio.value("a", "SELECT pg_is_in_recovery()"), within_s=10, what="the old primary answers")
        trio.stop("c")
        throughout(lambda: refuses(old), for_s=3, what="the old primary is not read", pause_s=0.3)
        with closing(Primary(trio.address(), "third", on_fenced=lambda: None)) as third, third.engine.connect() as on:
            assert on.execute(text("SELECT inet_server_port()")).scalar() == trio.ports["b"]


def refuses(standby: Standby) -> bool:
    standby.probe()
    try:
        read_from(standby)
    except MetadataUnavailable:
        return True
    return False


@pytest.mark.slow
def test_connections_to_a_replaced_primary_are_not_used_once_the_new_timeline_is_seen(trio: PromotableTrio) -> None:
    """Also those that a write manager had pooled: it reads there what nobody confirms any more."""
    with closing(active(trio, "first")) as first:
        with trio.paused("a"):
            trio.promote("b")
        with first.reading() as session:
            assert session.execute(text("SELECT inet_server_port()")).scalar() == trio.ports["a"]
        first.servers.probe()
        with first.reading() as session:
            assert session.execute(text("SELECT inet_server_port()")).scalar() == trio.ports["b"]


@pytest.mark.slow
def test_a_standby_that_does_not_follow_the_new_primary_leaves_the_pool(trio: PromotableTrio) -> None:
    with closing(active(trio, "first")), closing(Standby(trio.address("c", "b", "a"), "reads")) as standby:
        assert read_from(standby) == trio.ports["c"]
        trio.stop("a")
        trio.promote("b")

        def left() -> bool:
            standby.probe()
            return read_from(standby) == trio.ports["b"]

        until(left, within_s=15, what="reads leave the standby that receives nothing", pause_s=0.3)
        with standby.reading(detached=True) as session:
            assert session.execute(text("SELECT 1")).scalar() == 1
        trio.follow_primary("c")

        def is_back() -> bool:
            standby.probe()
            return read_from(standby) == trio.ports["c"]

        until(is_back, within_s=15, what="reads go back to the standby when it streams", pause_s=0.3)


@pytest.mark.slow
def test_standbys_without_a_primary_are_the_last_resort(trio: PromotableTrio) -> None:
    with closing(active(trio, "first")) as first, closing(Standby(trio.address("b", "c", "a"), "reads")) as standby:
        token = write(first, "kept")
        assert is_seen(standby, token, "kept")
        trio.stop("a")
        until(lambda: refuses(standby), within_s=15, what="no standby follows a primary", pause_s=0.3)
        with standby.reading(detached=True) as session:
            assert wait_for_replay(session, token, 0)


@pytest.mark.slow
def test_a_new_process_finds_the_new_primary_though_the_old_one_answers_first(trio: PromotableTrio) -> None:
    active(trio, "first").close()
    with trio.paused("a"):
        trio.promote("b")
        trio.follow_primary("c")
    with closing(active(trio, "second")) as second:
        assert write(second, "here").timeline == 2


@pytest.mark.slow
def test_a_cursor_is_where_its_last_confirmed_commit_left_it(trio: PromotableTrio) -> None:
    """Also after a promotion that lost a commit: nobody was told that it was stored."""
    topic = TopicRow(name="kept", topic_id=uuid.uuid4(), replication=1)
    with closing(active(trio, "first")) as first:
        with first.transaction() as transaction:
            transaction.session.add(topic)
            transaction.session.flush()
            consumer = added_consumer(transaction.session, topic)
        assert commit(first, consumer, 5) == "stored"
        with ExitStack() as hanging:
            with trio.paused("b", "c"):
                trio.execute("a", "SELECT pg_terminate_backend(pid) FROM pg_stat_replication")
                assert commit(first, consumer, 9) == "unknown"
                hanging.enter_context(trio.paused("a"))
            trio.promote("b")
            trio.follow_primary("c")
            until(lambda: trio.value("b", STREAMING) == 1, within_s=20, what="the other standby streams")
            with closing(active(trio, "second")) as second:
                with second.reading() as session:
                    row = cursors.load(session, consumer)
                assert row is not None
                assert row.cursors[0].offset == 5
                assert commit(second, consumer, 9) == "stored"


def commit(primary: Primary, consumer: int, offset: int) -> str:
    async def main() -> str:
        kept = Cursors(primary, structlog.get_logger(), asyncio.get_running_loop(), lease_s=3, claim_s=10)
        try:
            wanted = {0: CommitOffset(partition_id=0, offset=offset)}
            await kept.commit(consumer, "", None, wanted, {0: 9})
        except MetadataUnavailable as error:
            return str(error.outcome)
        finally:
            await asyncio.to_thread(kept.stop)
        return "stored"

    return asyncio.run(main())
