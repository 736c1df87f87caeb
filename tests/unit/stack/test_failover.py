"""What the arbiter decides from what it sees of the three PostgreSQL servers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stack.failover import (
    DAMAGED_STARTS,
    HUNG_READS,
    HUNG_READS_TOGETHER,
    PROMOTION_INTERVAL_S,
    SILENT_START_S,
    FinishPromotion,
    Initialise,
    Kill,
    Promote,
    PromotionRequest,
    Rebuild,
    Refuse,
    Seen,
    Start,
    Step,
    Wait,
    WalPosition,
    damage_in,
    is_diverged,
    next_step,
)
from stack.primary_record import PrimaryRecord, Promotion

DATA = Path("/x/data/postgres-1")
ONE, TWO, THREE = "postgres-1", "postgres-2", "postgres-3"
RECORD = PrimaryRecord(7, ONE, 1)
NOW_S = 1_800_000_000.0
ERASED = Seen("missing")
STANDBY = Seen("standby", is_running=True, position=WalPosition(1, 100), is_settled=True)


def step(
    name: str = ONE,
    one: Seen = ERASED,
    two: Seen = STANDBY,
    three: Seen = STANDBY,
    record: PrimaryRecord | None = RECORD,
    request: PromotionRequest | None = None,
) -> Step:
    return next_step(name, record, {ONE: one, TWO: two, THREE: three}, now_s=NOW_S, request=request)


def refusal(decided: Step) -> str:
    assert isinstance(decided, Refuse), decided
    return decided.reason


def test_an_empty_database_is_made_only_without_record_and_without_any_data() -> None:
    assert step(two=ERASED, three=ERASED, record=None) == Initialise()
    assert isinstance(step(TWO, two=ERASED, three=ERASED, record=None), Wait)
    assert "no record" in refusal(step(two=Seen("standby"), three=ERASED, record=None))
    assert "no standby's data" in refusal(step(two=ERASED, three=ERASED))


@pytest.mark.parametrize("name", [ONE, TWO])
def test_a_crashed_server_starts_from_its_own_folder(name: str) -> None:
    assert step(name, one=Seen("primary"), two=Seen("standby")) == Start()
    almost = DAMAGED_STARTS - 1
    assert step(name, Seen("primary", damaged_starts=almost), Seen("standby", damaged_starts=almost)) == Start()


@pytest.mark.parametrize("name", [ONE, TWO])
def test_a_running_server_is_killed_when_it_hangs_or_its_data_is_gone(name: str) -> None:
    def running(seen: Seen) -> Step:
        return step(name, one=seen, two=seen)

    assert running(Seen("standby", is_running=True, failed_reads=HUNG_READS - 1)) == Start()
    assert isinstance(running(Seen("standby", is_running=True, failed_reads=HUNG_READS)), Kill)
    assert isinstance(running(Seen("missing", is_running=True)), Kill)
    assert isinstance(running(Seen("standby", is_running=True, cannot_follow=True)), Kill)


def test_a_machine_that_is_slow_is_not_made_slower_by_restarts() -> None:
    def is_killed(**seen: Any) -> bool:
        return isinstance(step(one=Seen("primary", is_running=True, **seen)), Kill)

    assert not is_killed(failed_reads=HUNG_READS_TOGETHER - 1, others_fail=True)
    assert is_killed(failed_reads=HUNG_READS_TOGETHER, others_fail=True)
    assert not is_killed(failed_reads=2 * HUNG_READS - 1, hang_kills=1)
    assert is_killed(failed_reads=2 * HUNG_READS, hang_kills=1)
    assert is_killed(failed_reads=32 * HUNG_READS, hang_kills=1000)


def test_a_server_that_hangs_before_it_is_ready_is_killed_when_its_log_stands_still() -> None:
    starting = Seen("primary", is_running=True, silent_start_s=SILENT_START_S)
    assert isinstance(step(one=starting), Kill)
    assert step(one=replace(starting, hang_kills=1)) == Start()
    assert step(one=replace(starting, silent_start_s=SILENT_START_S - 1)) == Start()


@pytest.mark.parametrize("lost", [ERASED, Seen("primary", damaged_starts=DAMAGED_STARTS)])
def test_the_standby_that_is_furthest_is_promoted(lost: Seen) -> None:
    ahead = replace(STANDBY, position=WalPosition(1, 101))
    later = replace(STANDBY, position=WalPosition(2, 99))
    assert step(one=lost) == Promote(TWO)
    assert step(one=lost, three=ahead) == Promote(THREE)
    assert step(one=lost, two=ahead) == Promote(TWO)
    assert step(one=lost, two=ahead, three=later) == Promote(THREE)


def test_both_standbys_are_read_before_a_promotion() -> None:
    assert isinstance(step(three=replace(STANDBY, position=None)), Wait)
    assert isinstance(step(three=replace(STANDBY, is_settled=False)), Wait)
    assert "postgres-3 is stopped" in refusal(step(three=Seen("standby", is_stopped=True)))
    for unread in (ERASED, Seen("primary"), replace(STANDBY, is_foreign=True), Seen("standby", damaged_starts=3)):
        assert "make promote NAME" in refusal(step(three=unread))


def test_one_promotion_an_hour_without_a_person() -> None:
    recent = replace(RECORD, promoted_at=NOW_S - PROMOTION_INTERVAL_S + 1)
    assert "less than an hour ago" in refusal(step(record=recent))
    assert step(record=recent, request=PromotionRequest(THREE)) == Promote(THREE)
    assert step(record=replace(RECORD, promoted_at=NOW_S - PROMOTION_INTERVAL_S)) == Promote(TWO)
    set_back = replace(RECORD, promoted_at=NOW_S + PROMOTION_INTERVAL_S - 1)
    assert "hour" in refusal(step(record=set_back)), "by less than an hour"
    assert step(record=replace(RECORD, promoted_at=NOW_S + PROMOTION_INTERVAL_S)) == Promote(TWO), "by more"


def test_a_person_cannot_lose_what_the_other_standby_has_by_mistake() -> None:
    ahead = replace(STANDBY, position=WalPosition(1, 101))
    away = Seen("standby", is_stopped=True)
    assert "postgres-3 has received more" in refusal(step(three=ahead, request=PromotionRequest(TWO)))
    assert step(three=ahead, request=PromotionRequest(TWO, anyway=True)) == Promote(TWO)
    assert "stopped" in refusal(step(three=away, request=PromotionRequest(TWO)))
    assert step(three=away, request=PromotionRequest(TWO, anyway=True)) == Promote(TWO)
    assert isinstance(step(two=away, request=PromotionRequest(TWO, anyway=True)), Refuse)
    assert "not a standby" in refusal(step(request=PromotionRequest(ONE)))


def test_a_decision_is_carried_out_whatever_is_seen_later() -> None:
    decided = replace(RECORD, promotion=Promotion(THREE, 1), promoted_at=NOW_S)
    assert step(record=decided) == FinishPromotion(THREE)
    assert step(one=Seen("primary"), record=decided) == FinishPromotion(THREE)
    # Promoted before the runner was killed: its folder is a primary's, and nothing replaces it.
    assert step(THREE, three=Seen("primary"), record=decided) == Start()
    assert step(TWO, two=Seen("standby"), record=decided) == Start()
    assert isinstance(step(THREE, three=ERASED, record=decided), Refuse)


def test_a_standby_is_rebuilt_when_it_cannot_be_one() -> None:
    former = Seen("primary")
    for lost in (ERASED, former, Seen("standby", damaged_starts=3), Seen("standby", cannot_follow=True)):
        assert isinstance(step(TWO, Seen("primary", is_running=True), lost), Rebuild)
    assert "cannot be read" in refusal(step(TWO, two=Seen("unreadable")))
    assert "another database" in refusal(step(TWO, Seen("primary"), Seen("standby", is_foreign=True)))


seen = st.builds(
    Seen,
    folder=st.sampled_from(["missing", "unreadable", "standby", "primary"]),
    is_foreign=st.booleans(),
    is_running=st.booleans(),
    is_stopped=st.booleans(),
    failed_reads=st.integers(0, 4),
    others_fail=st.booleans(),
    damaged_starts=st.integers(0, 4),
    cannot_follow=st.booleans(),
    position=st.none() | st.builds(WalPosition, st.integers(1, 3), st.integers(0, 5)),
    is_settled=st.booleans(),
)
records = st.none() | st.builds(
    PrimaryRecord,
    st.just(7),
    st.sampled_from([ONE, TWO, THREE]),
    st.integers(1, 3),
    st.none() | st.floats(NOW_S - 2 * PROMOTION_INTERVAL_S, NOW_S + 2 * PROMOTION_INTERVAL_S),
)


@given(seen, seen, seen, records, st.sampled_from([ONE, TWO, THREE]))
def test_nothing_acknowledged_is_given_up_without_a_person(
    one: Seen, two: Seen, three: Seen, record: PrimaryRecord | None, name: str
) -> None:
    servers = {ONE: one, TWO: two, THREE: three}
    decided = next_step(name, record, servers, now_s=NOW_S)
    if isinstance(decided, Initialise):
        assert record is None
        assert {each.folder for each in servers.values()} == {"missing"}
    if isinstance(decided, Promote):
        assert record is not None
        assert name == record.primary != decided.name
        assert servers[name].is_lost
        assert not servers[name].is_running
        standbys = [servers[each] for each in servers if each != name]
        assert all(each.is_settled and not each.is_foreign for each in standbys)
        positions = [each.position for each in standbys]
        assert servers[decided.name].position == max(position for position in positions if position is not None)
        assert None not in positions
        assert record.promoted_at is None or abs(NOW_S - record.promoted_at) >= PROMOTION_INTERVAL_S
    if isinstance(decided, Rebuild):
        assert record is not None
        assert name != record.primary, "the primary's data is never replaced by a copy"


@pytest.mark.parametrize(
    "line",
    [
        "FATAL:  incorrect checksum in control file",
        "PANIC:  could not locate a valid checkpoint record at 0/2000028",
        'FATAL:  could not open file "global/pg_filenode.map": No such file or directory',
        'FATAL:  could not open directory "pg_notify": No such file or directory',
        'FATAL:  could not read file "global/pg_control": read 0 of 296',
        'PANIC:  could not read file "pg_xact/0000": Input/output error',
        f'FATAL:  could not open file "{DATA}/PG_VERSION": No such file or directory',
    ],
)
def test_damaged_data_is_recognised(line: str) -> None:
    log = f"2026-01-01 00:00:00.000 UTC [1] LOG:  starting\n2026-01-01 00:00:00.000 UTC [1] {line}\n"
    assert damage_in(log, DATA) == line.partition(":  ")[2]


@pytest.mark.parametrize(
    "line",
    [
        'FATAL:  could not write to file "pg_wal/xlogtemp.7": No space left on device',
        "FATAL:  could not create any TCP/IP sockets",
        'FATAL:  lock file "postmaster.pid" already exists',
        'FATAL:  configuration file "/x/postgresql.conf" contains errors',
        'FATAL:  could not open file "/x/PG_VERSION": Permission denied',
        'FATAL:  could not access file "pg_stat_statements": No such file or directory',
        'FATAL:  could not open directory "/x/share/timezone": No such file or directory',
        'FATAL:  could not open file "/x/base": No such file or directory',
        "FATAL:  database files are incompatible with server",
        "FATAL:  could not map anonymous shared memory: Cannot allocate memory",
        'LOG:  could not open file "pg_wal/000000010000000000000009": No such file or directory',
        "FATAL:  the database system is starting up",
    ],
)
def test_what_another_server_on_this_machine_would_meet_too_is_no_damage(line: str) -> None:
    assert damage_in(f"2026-01-01 00:00:00.000 UTC [1] {line}\n", DATA) is None


@pytest.mark.parametrize(
    "line",
    [
        "FATAL:  requested timeline 2 is not a child of this server's history",
        "FATAL:  requested timeline 2 does not contain minimum recovery point 0/3000148 on timeline 1",
    ],
)
def test_a_standby_with_another_history_is_recognised(line: str) -> None:
    assert is_diverged(f"2026-01-01 00:00:00.000 UTC [1] {line}\n")
    assert not is_diverged("2026-01-01 00:00:00.000 UTC [1] FATAL:  the database system is starting up\n")
