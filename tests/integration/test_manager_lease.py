"""The lease row on a real server: who gets it, who keeps it, and what its loss allows."""

from collections.abc import Iterator
from contextlib import closing

import psycopg2
import pytest
from sqlalchemy import text

from db.manager_lease import ManagerLease, sessions_of
from db.primary import Fenced, Primary
from stack.local import LocalStack
from tests.cluster import STANDBYS
from tests.integration.conftest import address
from tests.integration.postgres_servers import as_admin, as_manager, hanging
from tests.waiting import throughout, until


@pytest.fixture
def released(primary: Primary) -> None:
    with primary.engine.begin() as connection:
        connection.execute(text("UPDATE write_manager_lease SET holder = '', epoch = 0, released = true"))


@pytest.fixture
def one(trio: LocalStack, released: None) -> Iterator[ManagerLease]:
    with closing(ManagerLease(address(trio), "one")) as lease:
        yield lease


@pytest.fixture
def other(trio: LocalStack, released: None) -> Iterator[ManagerLease]:
    with closing(ManagerLease(address(trio), "other")) as lease:
        yield lease


def take(lease: ManagerLease) -> bool:
    look = lease.look()
    assert look is not None
    return lease.take(look.record)


def test_one_of_two_that_saw_the_same_row_gets_it(one: ManagerLease, other: ManagerLease) -> None:
    seen = one.look()
    assert seen is not None
    assert seen == other.look()
    assert [lease.take(seen.record) for lease in (one, other)] == [True, False]
    assert other.renew(0, {0}) is None
    renewed = one.renew(0, {0})
    assert renewed is not None
    assert (renewed.timeline, renewed.confirmed) == (1, True)


def test_a_restart_of_postgresql_after_a_lost_race_costs_no_second_wait(
    trio: LocalStack, one: ManagerLease, other: ManagerLease
) -> None:
    seen = other.look()
    assert seen is not None
    assert take(one)
    assert not other.take(seen.record)
    look = other.look()
    assert look is not None
    with closing(as_manager(trio)) as restarted:
        restarted.cursor().execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            f" WHERE application_name LIKE '{sessions_of('other')}% lease'"
        )
        assert other.take(look.record), "not on a connection from before"


def test_a_lease_that_was_taken_away_is_neither_renewed_nor_released(one: ManagerLease, other: ManagerLease) -> None:
    assert take(one)
    assert one.renew(5, {0, 5}) is not None
    assert one.renew(5, {5}) is not None
    assert take(other)
    assert one.renew(5, {5}) is None
    assert not one.release({5})
    look = other.look()
    assert look is not None
    assert (look.record.holder, look.record.epoch, look.record.released) == ("other", 0, False)
    assert other.release({0})
    assert other.renew(0, {0}) is None, "a released lease is over"


def test_a_holder_whose_session_was_ended_still_hears_that_the_lease_is_another_ones(
    trio: LocalStack, one: ManagerLease, other: ManagerLease
) -> None:
    """The one that takes over ends the sessions before it: an error would look as if PostgreSQL were away."""

    def end_session() -> None:
        sessions = f"FROM pg_stat_activity WHERE starts_with(application_name, '{one.application}')"
        assert as_admin(trio, "postgres-1", f"SELECT pg_terminate_backend(pid, 5000) {sessions}") == [(True,)]

    assert take(one)
    one.stop_watching()
    end_session()
    assert one.renew(5, {0, 5}) is not None
    assert take(other)
    end_session()
    assert one.renew(5, {5}) is None


def test_a_renewal_tells_whether_a_standby_has_got_an_earlier_one(trio: LocalStack, one: ManagerLease) -> None:
    assert take(one)
    first = one.renew(0, {0})
    assert first is not None

    def confirmed(written: str) -> bool:
        renewed = one.renew(0, {0}, written)
        assert renewed is not None
        return renewed.confirmed

    until(lambda: confirmed(first.written), within_s=5, what="a standby has got it")
    assert not confirmed("FFFFFFFF/0"), "one that nobody has got"
    with hanging(trio, *STANDBYS):
        unseen = one.renew(0, {0})
        assert unseen is not None, "renewals do not wait for standbys"
        throughout(lambda: not confirmed(unseen.written), for_s=1, what="it is with nobody")
        until(lambda: not has_standby(one), within_s=20, what="the server has noticed that they are away")
    until(lambda: confirmed(unseen.written) and has_standby(one), within_s=20, what="they are back")


def has_standby(lease: ManagerLease) -> bool:
    look = lease.look()
    assert look is not None
    return look.has_standby


def test_the_epoch_is_only_for_the_holder_of_the_lease(
    primary: Primary, one: ManagerLease, other: ManagerLease
) -> None:
    """A process that was paused between its lease and its epoch does not fence the one that took over meanwhile."""
    before = primary.epoch
    assert before is not None
    assert take(one)
    assert take(other)
    with pytest.raises(Fenced):
        primary.take_over("one", leased=True)
    assert primary.problem() is None, "the epoch is as it was"
    assert primary.take_over("other", leased=True) == before + 1


def test_a_namesake_is_known_by_its_session(trio: LocalStack, one: ManagerLease) -> None:
    assert take(one)
    with closing(ManagerLease(address(trio), "one")) as namesake:
        look = namesake.look()
        assert look is not None
        assert look.namesake_lives
        own = one.look()
        assert own is not None
        assert not own.namesake_lives
        one.close()

        def has_gone() -> bool:
            look = namesake.look()
            return look is not None and not look.namesake_lives

        until(has_gone, within_s=5, what="the session of the first one has ended")


def test_sessions_of_the_predecessor_end(trio: LocalStack, primary: Primary, one: ManagerLease) -> None:
    primary.take_over("gone")
    with closing(as_manager(trio)) as left, closing(as_manager(trio)) as reader:
        left.cursor().execute(f"SET application_name = '{sessions_of('gone')}12345678'")
        left.cursor().execute("BEGIN; SELECT epoch FROM write_manager_epoch FOR SHARE")
        reader.cursor().execute("SET application_name = 'read-manager-1'")
        assert one.end_predecessors_sessions() == 1
        with pytest.raises(psycopg2.OperationalError):
            left.cursor().execute("SELECT 1")
        reader.cursor().execute("SELECT 1")
