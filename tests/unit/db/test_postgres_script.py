"""What db/postgres.sh decides at its start, with a shell of its own and programs of PostgreSQL that only pretend."""

import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "db" / "postgres.sh"
DATABASE = 7301
ANOTHER = 9999

# A server answers with what a file of its name says; one without a file refuses connections. A data folder says in
# `state` what pg_controldata tells of it.
PROGRAMS = {
    "psql": r"""
for argument; do
    case $argument in
    host=*) host=${argument#host=} host=${host%% *} ;;
    *wal_status\ FROM*) exec cat "$WORLD/slot" ;;
    *pg_create_physical*) echo "$argument" >>"$WORLD/statements"; exit 0 ;;
    *pg_promote*) exec cat "$WORLD/promoted" ;;
    *pg_stat_replication*) exec echo 1 ;;
    *pg_wal_lsn_diff*) exec echo f ;;
    *pg_last_wal_receive_lsn*) exec echo 0/5 ;;
    esac
done
[ -e "$WORLD/servers/$host" ] || { echo "connection refused" >&2; exit 2; }
grep FATAL "$WORLD/servers/$host" >&2 && exit 2
cat "$WORLD/servers/$host"
""",
    "pg_controldata": 'cat "$2/state"',
    "pg_basebackup": r"""
while [ "$1" != -h ]; do [ "$1" != -D ] || target=$2; shift; done
mkdir "$target" && echo "copy of $2" >"$target/whose" && touch "$target/PG_VERSION"
""",
    "initdb": 'mkdir "$2" && echo made >"$2/whose" && touch "$2/PG_VERSION"',
    "postgres": r"""
[ "$1" != --single ] || { cat >"$WORLD/first-statements"; exit "${SINGLE_FAILS:-0}"; }
touch "$WORLD/started"
""",
    "pg_isready": "exit 0",
    "pg_ctl": 'echo "$*" >"$WORLD/stopped"',
}


@dataclass
class World:
    """The server postgres-N with its volume, and what the others answer."""

    folder: Path
    name: str = "postgres-1"
    running: "list[subprocess.Popen[str]]" = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.folder / "servers").mkdir()
        self.volume.mkdir()
        programs = self.folder / "programs"
        programs.mkdir()
        for name, text in PROGRAMS.items():
            (programs / name).write_text(f"#!/bin/sh\n{text}\n")
            (programs / name).chmod(0o755)

    @property
    def volume(self) -> Path:
        return self.folder / "volume"

    @property
    def data(self) -> Path:
        return self.volume / "myqueue"

    @property
    def started(self) -> bool:
        return (self.folder / "started").exists()

    def whose(self) -> str:
        return (self.data / "whose").read_text().strip()

    def has(self, timeline: int, *, role: str = "primary", under: str = "myqueue") -> None:
        data = self.volume / under
        data.mkdir()
        (data / "PG_VERSION").touch()
        (data / "whose").write_text("own")
        (data / "state").write_text(
            f"Database system identifier:           {DATABASE}\n"
            f"Latest checkpoint's TimeLineID:       {timeline}\n"
            f"Latest checkpoint's PrevTimeLineID:   {timeline}\n"
            "Min recovery ending loc's timeline:   0\n"
        )
        if role == "standby":
            (data / "standby.signal").touch()

    def answers(self, server: str, role: str, timeline: int, database: int = DATABASE) -> None:
        in_recovery = "on" if role == "standby" else "off"
        self.says(server, f"{database} {timeline} 0/3000148 postgres\n{in_recovery}\n")

    def says(self, server: str, text: str) -> None:
        new = self.folder / "new"
        new.write_text(text)
        new.replace(self.folder / "servers" / server)

    def start(self, *arguments: str, **env: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            ["/bin/sh", SCRIPT, *(arguments or ["serve"])],
            env={
                "PATH": f"{self.folder / 'programs'}:{os.environ['PATH']}",
                "WORLD": str(self.folder),
                "POSTGRES_FOLDER": str(self.volume),
                "POSTGRES_SETTINGS": str(SCRIPT.with_name("postgresql.conf")),
                "POSTGRES_NAME": self.name,
                "POSTGRES_SERVERS": "postgres-1 postgres-2 postgres-3",
                "POSTGRES_PATIENCE_S": "0",
                "POSTGRES_PASSWORD": "a",
                "MYQUEUE_DATABASE_PASSWORD": "b",
                "REPLICATION_PASSWORD": "c",
                **env,
            },
            stderr=subprocess.PIPE,
            text=True,
        )
        self.running.append(process)
        return process

    def ends(self, *arguments: str, code: int = 0, **env: str) -> str:
        """Runs it to its end and gives what it said."""
        process = self.start(*arguments, **env)
        said = process.communicate(timeout=20)[1]
        assert process.returncode == code, said
        return said

    def waits(self) -> "tuple[subprocess.Popen[str], str]":
        """Starts it and gives the reason for which it waits."""
        process = self.start()
        assert process.stderr is not None
        for line in process.stderr:
            if "waiting: " in line:
                return process, line
        raise AssertionError("it did not wait")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    for process in world.running:
        process.kill()
        process.communicate()


def test_the_first_start_makes_the_database_once(world: World) -> None:
    assert "making the primary" in world.ends()
    assert (world.whose(), world.started) == ("made", True)
    assert "GRANT pg_read_all_stats TO myqueue" in (world.folder / "first-statements").read_text()
    assert not (world.volume / ".admin-password").exists()


def test_a_first_start_that_fails_is_not_complete(world: World) -> None:
    world.ends(SINGLE_FAILS="1", code=1)
    assert not world.data.exists()
    assert not (world.volume / ".admin-password").exists()


def test_a_password_that_would_end_a_statement_is_refused(world: World) -> None:
    said = world.ends(MYQUEUE_DATABASE_PASSWORD="a'b", code=1)
    assert "MYQUEUE_DATABASE_PASSWORD may have letters" in said
    assert "a'b" not in said


def test_another_one_than_the_first_waits_for_the_primary_and_copies_it(world: World) -> None:
    world.name = "postgres-2"
    process, why = world.waits()
    assert "there is no primary yet" in why
    world.answers("postgres-1", "primary", 1)
    process.communicate(timeout=20)
    assert (world.whose(), world.started) == ("copy of postgres-1", True)
    assert (world.data / "standby.signal").exists()
    assert "'postgres_2'" in (world.folder / "statements").read_text()  # whatever became of its slot


def test_the_first_one_without_data_makes_none_beside_a_standby(world: World) -> None:
    world.answers("postgres-2", "standby", 1)
    process, why = world.waits()
    assert "exec postgres-2 sh /etc/myqueue/postgres.sh promote" in why
    world.answers("postgres-2", "primary", 2)
    process.communicate(timeout=20)
    assert world.whose() == "copy of postgres-2"


def test_who_refuses_to_talk_is_there(world: World) -> None:
    world.says("postgres-3", "connection to server failed: FATAL:  the database system is starting up\n")
    process, why = world.waits()
    assert "postgres-3 answers: the database system is starting up" in why
    world.answers("postgres-3", "primary", 1)
    process.communicate(timeout=20)
    assert world.whose() == "copy of postgres-3"


def test_who_is_silent_is_asked_again_for_a_while(world: World) -> None:
    before = time.monotonic()
    world.ends(POSTGRES_PATIENCE_S="1")
    assert time.monotonic() - before >= 1


@pytest.mark.parametrize("role", ["primary", "standby"])
def test_a_primary_starts_beside_servers_that_are_not_later(world: World, role: str) -> None:
    world.has(2)
    world.answers("postgres-2", role, 1)
    world.answers("postgres-3", "standby", 2)
    world.ends(POSTGRES_PATIENCE_S="60")  # nobody is silent: nothing to be patient for
    assert (world.whose(), world.started) == ("own", True)


def test_a_replaced_primary_comes_back_as_a_standby(world: World) -> None:
    world.has(1)
    world.answers("postgres-2", "primary", 2)
    world.ends()
    assert (world.whose(), world.started) == ("copy of postgres-2", True)
    assert (world.volume / "myqueue.old" / "whose").read_text() == "own"


def test_a_replaced_primary_does_not_serve_while_only_a_standby_tells(world: World) -> None:
    world.has(1)
    world.answers("postgres-3", "standby", 2)
    _, why = world.waits()
    assert "postgres-3 has later data" in why
    assert not world.started


@pytest.mark.parametrize(
    ("timeline", "database", "words"), [(1, ANOTHER, "another database"), (1, DATABASE, "a primary too")]
)
def test_what_contradicts_is_left_to_the_operator(world: World, timeline: int, database: int, words: str) -> None:
    world.has(1)
    world.answers("postgres-2", "primary", timeline, database)
    _, why = world.waits()
    assert words in why
    assert (world.whose(), world.started) == ("own", False)


def test_an_exchange_that_was_cut_off_is_undone(world: World) -> None:
    world.has(1, under="myqueue.old")
    (world.volume / ".myqueue.new").mkdir()
    assert "going back" in world.ends()
    assert (world.whose(), world.started) == ("own", True)


@pytest.mark.parametrize(
    ("slot", "database", "whose"),
    [
        ("reserved", DATABASE, "own"),
        ("lost", DATABASE, "copy of postgres-2"),
        ("missing", DATABASE, "copy of postgres-2"),
        ("lost", ANOTHER, "own"),
    ],
)
def test_a_standby_starts_and_copies_only_what_it_cannot_catch_up_with(
    world: World, slot: str, database: int, whose: str
) -> None:
    world.has(2, role="standby")
    (world.folder / "slot").write_text(slot)
    world.answers("postgres-2", "primary", 2, database)
    world.ends()
    assert (world.whose(), world.started) == (whose, True)


def test_a_standby_does_not_go_back_to_an_older_primary(world: World) -> None:
    world.has(2, role="standby")
    (world.folder / "slot").write_text("lost")
    world.answers("postgres-2", "primary", 1)
    world.ends()
    assert world.whose() == "own"


@pytest.mark.parametrize(("timeline", "code"), [(1, 0), (2, 1)])
def test_a_running_primary_ends_when_it_meets_a_later_timeline(world: World, timeline: int, code: int) -> None:
    world.has(1)
    world.answers("postgres-3", "standby", timeline)
    world.ends("healthy", code=code)
    assert (world.folder / "stopped").exists() == bool(code)


def test_promotion_insists(world: World) -> None:
    world.name = "postgres-2"
    world.has(1, role="standby")
    world.answers("postgres-3", "standby", 1)
    (world.folder / "promoted").write_text("f\n")
    said = world.ends("promote", code=1)
    assert "no answer from: postgres-1. Not reachable is not the same as stopped" in said
    assert "was not within a minute" in said
    (world.folder / "promoted").write_text("t\n")
    world.ends("promote")


@pytest.mark.parametrize(
    ("role", "timeline", "words"),
    [("primary", 1, "is the primary and answers"), ("standby", 2, "later timeline: promote that one")],
)
def test_promotion_is_refused(world: World, role: str, timeline: int, words: str) -> None:
    world.name = "postgres-2"
    world.has(1, role="standby")
    world.answers("postgres-3", role, timeline)
    assert words in world.ends("promote", "anyway", code=1)
