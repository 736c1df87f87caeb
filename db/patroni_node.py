"""One PostgreSQL server of the trio in a container: Patroni runs it, and etcd says which one is the primary.

  serve       write Patroni's configuration and become Patroni
  adopt       this data is what the cluster goes on with: when it is from before Patroni, or etcd has lost its own
  set-aside   the same for the other servers: their data is kept beside, and copied anew from the adopted one
  passwords   set the passwords of the environment on the primary, whichever server it is; in a container of its own

Runs on the standard library alone. Needs POSTGRES_NAME (this server's name and host name), POSTGRES_SERVERS (all names;
the first one makes the database on the very first start), POSTGRES_ETCD (host:port of each etcd), POSTGRES_PASSWORD,
MYQUEUE_DATABASE_PASSWORD, REPLICATION_PASSWORD. Of the image it expects the programs of PostgreSQL and Patroni on PATH,
and that POSTGRES_FOLDER, a volume, may be written.
"""

import base64
import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCOPE = "myqueue"
ADMIN, REPLICATOR, DATABASE, DATABASE_USER = "postgres", "replicator", "myqueue", "myqueue"
PORT, API_PORT = 5432, 8008
PASSWORDS = ("POSTGRES_PASSWORD", "MYQUEUE_DATABASE_PASSWORD", "REPLICATION_PASSWORD")
SETTINGS_FILE = Path(__file__).with_name("postgresql.conf")
RUNTIME = Path("/tmp")  # noqa: S108 - memory, of this container alone: the passwords in it are never on a disk
# Patroni keeps its settings there, and a copy of a primary has it too: data without one was made before Patroni.
MARKS = ("patroni.dynamic.json", "adopted")
ASK_S = 2.0
ASK_AGAIN_S = 0.5
TELL_AGAIN_S = 30.0
APPLY_S = 15.0

_SETTING = re.compile(r"^(\w+)\s*=\s*(?:'([^']*)'|(\S+))\s*(?:#.*)?$")
_PASSWORD = re.compile(r"[A-Za-z0-9._~+/=-]+")


class Refused(Exception):
    """Printed without a traceback; says what to do."""


@dataclass(frozen=True)
class Node:
    name: str
    servers: tuple[str, ...]
    etcd: tuple[str, ...]
    folder: Path
    admin_password: str
    database_password: str
    replication_password: str

    @property
    def data(self) -> Path:
        return self.folder / "myqueue"

    @property
    def others(self) -> list[str]:
        return [server for server in self.servers if server != self.name]

    @property
    def has_data(self) -> bool:
        return (self.data / "PG_VERSION").exists()

    @property
    def is_known_to_patroni(self) -> bool:
        return any((self.data / mark).exists() for mark in MARKS)

    @property
    def word(self) -> Path:
        """Somebody's word that this data counts, good for one start; beside the data, because copies of it do not."""
        return self.folder / "begin-with-this"


def node_of(environment: Mapping[str, str]) -> Node:
    for name in ("POSTGRES_NAME", "POSTGRES_SERVERS", "POSTGRES_ETCD"):
        if not environment.get(name):
            raise Refused(f"{name} is not set: docker-compose.yml has it")
    for name in PASSWORDS:  # they become part of statements and of connection strings
        value = environment.get(name, "")
        if not value:
            raise Refused(f"{name} is not set: make .env with `make env`")
        if _PASSWORD.fullmatch(value) is None:
            raise Refused(f"{name} may have letters, digits and . _ ~ + / = - only")
    return Node(
        environment["POSTGRES_NAME"],
        tuple(environment["POSTGRES_SERVERS"].split()),
        tuple(environment["POSTGRES_ETCD"].split()),
        Path(environment.get("POSTGRES_FOLDER") or "/var/lib/postgresql"),
        *(environment[name] for name in PASSWORDS),
    )


def postgres_settings(text: str) -> dict[str, str]:
    """Of a postgresql.conf with one setting a line."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            match = _SETTING.match(line.strip())
            if match is None:
                raise Refused(f"{SETTINGS_FILE.name}: cannot read {line!r}")
            name, quoted, bare = match.groups()
            found[name] = bare if quoted is None else quoted
    return found


def dynamic_configuration(settings: Mapping[str, str]) -> dict[str, Any]:
    """What holds for all servers; Patroni keeps it in etcd."""
    return {
        # The shortest that Patroni allows: a primary that hangs, or whose host is gone, is replaced that much later.
        "ttl": 20,
        "loop_wait": 2,
        "retry_timeout": 5,
        # A commit waits for one standby of two, and is refused to nobody: with strict it waits while there is none.
        "synchronous_mode": "quorum",
        "synchronous_mode_strict": True,
        "synchronous_node_count": 1,
        # While etcd is away the primary goes on as long as it reaches all other servers.
        "failsafe_mode": True,
        # The quorum decides who may become the primary. A bound beside it can leave the cluster without one.
        "maximum_lag_on_failover": (1 << 63) - 1,
        # A crashed server recovers within a second or two; one that does not is replaced.
        "primary_start_timeout": 10,
        "primary_stop_timeout": 10,
        # How long the WAL that an absent standby lacks is kept for it, within max_slot_wal_keep_size.
        "member_slots_ttl": 86400,
        "postgresql": {
            "use_pg_rewind": True,
            # What the others lack of a former primary was never acknowledged.
            "remove_data_directory_on_rewind_failure": True,
            "use_slots": True,
            "parameters": dict(settings),
        },
    }


def configuration(node: Node, settings: Mapping[str, str], *, may_begin: bool) -> dict[str, Any]:
    """Patroni's configuration file. `may_begin`: make the database, or the cluster, if etcd knows of none."""
    found: dict[str, Any] = {
        "scope": SCOPE,
        "name": node.name,
        "etcd3": {"hosts": list(node.etcd)},
        "log": {"deduplicate_heartbeat_logs": True},
        "restapi": {
            "listen": f"0.0.0.0:{API_PORT}",
            "connect_address": f"{node.name}:{API_PORT}",
            # For whoever wants to change something; to look needs none.
            "authentication": {"username": "patroni", "password": node.replication_password},
        },
        "postgresql": {
            "listen": f"0.0.0.0:{PORT}",
            "connect_address": f"{node.name}:{PORT}",
            "data_dir": str(node.data),
            "pgpass": str(RUNTIME / "pgpass"),
            "use_unix_socket": True,
            "authentication": {
                "superuser": {"username": ADMIN, "password": node.admin_password},
                "replication": {"username": REPLICATOR, "password": node.replication_password},
            },
            "pg_hba": [
                f"local all {ADMIN} peer",
                "host all all all scram-sha-256",
                f"host replication {REPLICATOR} all scram-sha-256",
            ],
            "parameters": {"unix_socket_directories": str(RUNTIME)},
            "basebackup": [{"checkpoint": "fast"}],
        },
    }
    if may_begin:
        found["bootstrap"] = {
            "dcs": dynamic_configuration(settings),
            "initdb": [
                {"encoding": "UTF8"}, {"locale": "C.UTF-8"}, "data-checksums",
                {"auth-local": "peer"}, {"auth-host": "scram-sha-256"},
            ],
            "post_bootstrap": f"psql -X -q -v ON_ERROR_STOP=1 -f {RUNTIME / 'first.sql'} -d",
        }  # fmt: skip
    return found


def first_statements(node: Node) -> str:
    """Of a new database. An error is logged without the statement, which contains a password."""
    return ";\n".join(
        [
            "SET log_min_error_statement = panic",
            f"CREATE ROLE {DATABASE_USER} LOGIN PASSWORD '{node.database_password}'",
            f"GRANT pg_read_all_stats TO {DATABASE_USER}",
            f"CREATE ROLE {REPLICATOR} LOGIN REPLICATION PASSWORD '{node.replication_password}'",
            f"GRANT pg_use_reserved_connections TO {REPLICATOR}",
            f"CREATE DATABASE {DATABASE} OWNER {DATABASE_USER}",
            "",
        ]
    )


def refuse_foreign_data(node: Node) -> None:
    # Its start script then left a file of this name.
    if (node.data / "myqueue.conf").exists() and not node.is_known_to_patroni:
        role = "standby" if (node.data / "standby.signal").exists() else "primary"
        raise Refused(
            f"the data of {node.name} was made before Patroni, when it was a {role}. Say once, while all servers are "
            "stopped, whose data counts: `docker compose run --rm --no-deps NAME adopt` for the one that was the last "
            "primary, `docker compose run --rm --no-deps NAME set-aside` for each of the others, then `docker compose "
            "up -d`. docs/operations.md has more: Volumes from before Patroni"
        )


def refuse_to_begin_with_data(node: Node, initialize: bytes | None) -> None:
    """Without etcd's word Patroni takes whichever server comes first, also one that was away for a day."""
    if node.has_data and not initialize and not node.word.exists():
        raise Refused(
            f"{node.name} has data, but etcd knows of no cluster: its volume was lost, or is another one. Bring that "
            "volume back, or say once whose data counts: `docker compose stop postgres-1 postgres-2 postgres-3`, then "
            "`docker compose run --rm --no-deps NAME adopt` for the one that was the last primary, then `docker "
            "compose up -d`; the others follow it. docs/operations.md has more: When etcd has lost its data"
        )


def adopt(node: Node) -> str:
    if not node.has_data:
        raise Refused(f"{node.name} has no data in {node.data}")
    was = "standby" if (node.data / "standby.signal").exists() else "primary"
    if not node.is_known_to_patroni:
        # Settings of then: Patroni gives all of them.
        (node.data / "myqueue.conf").write_text("")
        (node.data / "adopted").touch(mode=0o600)
    node.word.touch(mode=0o600)
    return f"the data of {node.name}, a {was} before, is what the cluster goes on with"


def set_aside(node: Node) -> str:
    if not node.has_data:
        return f"{node.name} has no data: it will copy the primary"
    if node.is_known_to_patroni:
        raise Refused(f"the data of {node.name} is Patroni's: nothing is moved")
    target = node.data.with_name("myqueue.before-patroni")
    if target.exists():
        raise Refused(f"{target} exists: look at what it is, and remove it")
    node.data.rename(target)
    return f"the data of {node.name} is in {target} now; remove it when the cluster runs. It will copy the primary"


def has_database(state: object) -> bool:
    """Whether the answer of another Patroni says that there is a database."""
    return isinstance(state, dict) and bool(state.get("database_system_identifier"))


def await_others(node: Node) -> bool:
    """Whether no server has data. All are asked until they answer: one that is silent may have some."""
    silent, told_s = node.others, -TELL_AGAIN_S
    while silent:
        for server in list(silent):
            state = asked(f"{server}:{API_PORT}", "/patroni")
            if has_database(state):
                say(f"{server} has a database: copying the primary when there is one")
                return False
            if state is not None:
                silent.remove(server)
        if silent and time.monotonic() - told_s >= TELL_AGAIN_S:
            told_s = time.monotonic()
            say(f"no database is made before {' and '.join(silent)} said that there is none: waiting")
        if silent:
            time.sleep(ASK_AGAIN_S)
    return True


def asked(address: str, path: str, body: object = None) -> object:
    """The JSON of an answer, whatever its status; None without one."""
    connection = http.client.HTTPConnection(address, timeout=ASK_S)
    try:
        connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body))
        return json.loads(connection.getresponse().read())
    except (OSError, ValueError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def etcd_called(node: Node, verb: str, key: str) -> dict[str, Any]:
    """The answer of any etcd; empty without one."""
    body = {"key": base64.b64encode(f"/service/{SCOPE}/{key}".encode()).decode()}
    for host in node.etcd:
        found = asked(host, f"/v3/kv/{verb}", body)
        if isinstance(found, dict) and "header" in found:
            return found
    return {}


def stored(node: Node, key: str) -> bytes | None:
    """What Patroni keeps in etcd under a key; None if there is none, or no answer."""
    return _value(etcd_called(node, "range", key))


def await_stored(node: Node, key: str) -> bytes | None:
    """The same, None if there is none. Patroni too does nothing before an etcd answers."""
    told = False
    while not (found := etcd_called(node, "range", key)):
        if not told:
            say(f"no etcd answers ({', '.join(node.etcd)}): waiting")
            told = True
        time.sleep(ASK_AGAIN_S)
    return _value(found)


def _value(answer: dict[str, Any]) -> bytes | None:
    values = answer.get("kvs") or []
    return base64.b64decode(values[0].get("value", "")) if values else None


def undo_unfinished(node: Node, initialize: bytes | None) -> bytes | None:
    """A first start or a copy that was cut off is done again: Patroni would wait for ever for its end. `initialize`:
    what etcd has, empty while a database is made; what it has then is returned."""
    if node.name == node.servers[0] and initialize == b"":
        say("the first start was cut off: beginning again")
        _move_aside(node)
        etcd_called(node, "deleterange", "initialize")
        return None
    # A copy writes that file last.
    if node.data.exists() and not (node.data / "global" / "pg_control").exists():
        say("the data is incomplete, and copied anew")
        _move_aside(node)
    return initialize


def _move_aside(node: Node) -> None:
    aside = node.data.with_name("myqueue.incomplete")
    if node.data.exists():
        shutil.rmtree(aside, ignore_errors=True)
        node.data.rename(aside)
        say(f"what was there is in {aside} now")


def includes(there: object, wanted: object) -> bool:
    """Whether all that is wanted is there, beside whatever else."""
    if isinstance(wanted, Mapping):
        return isinstance(there, Mapping) and all(includes(there.get(key), wanted[key]) for key in wanted)
    return str(there) == str(wanted)


def apply_settings(node: Node, settings: Mapping[str, str]) -> None:
    """postgresql.conf is the truth: what etcd has is changed when a server starts with another one."""
    wanted = dynamic_configuration(settings)
    there = stored(node, "config")
    if there is None or includes(json.loads(there), wanted):
        return
    say("the settings have changed: telling etcd")
    command = ["patronictl", "-c", str(RUNTIME / "patroni.json"), "edit-config", SCOPE, "--force", "--apply", "-"]
    try:
        subprocess.run(command, input=json.dumps(wanted), text=True, check=True, timeout=APPLY_S, stdout=sys.stderr)
    except (subprocess.SubprocessError, OSError) as failure:
        say(f"they stay as they were until the next start: {failure}")


def write_secret(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)


def may_begin(node: Node) -> bool:
    """Whether Patroni may make the cluster: etcd knows of none, and this server's data is what somebody said counts, or
    there is none anywhere and this is the first server."""
    initialize = undo_unfinished(node, await_stored(node, "initialize"))
    refuse_to_begin_with_data(node, initialize)
    if initialize:
        return False
    if node.has_data:
        return True
    # Meanwhile another one may have begun.
    return node.name == node.servers[0] and await_others(node) and await_stored(node, "initialize") is None


def serve(node: Node) -> None:
    refuse_foreign_data(node)
    begins = may_begin(node)
    settings = postgres_settings(SETTINGS_FILE.read_text())
    write_secret(RUNTIME / "first.sql", first_statements(node))
    write_secret(RUNTIME / "patroni.json", json.dumps(configuration(node, settings, may_begin=begins)))
    apply_settings(node, settings)
    node.word.unlink(missing_ok=True)
    # What it starts needs none of the passwords in its environment.
    environment = {name: value for name, value in os.environ.items() if name not in PASSWORDS}
    os.execvpe("patroni", ["patroni", str(RUNTIME / "patroni.json")], environment)  # noqa: S606


def tell_passwords(node: Node) -> str:
    """The administrator's own password is what opens the door: it cannot be changed this way."""
    statements = (
        f"ALTER ROLE {DATABASE_USER} PASSWORD '{node.database_password}';\n"
        f"ALTER ROLE {REPLICATOR} PASSWORD '{node.replication_password}';\n"
    )
    address = (
        f"host={','.join(node.servers)} port={PORT} user={ADMIN} dbname=postgres target_session_attrs=read-write "
        "connect_timeout=2"
    )
    done = subprocess.run(
        ["psql", "-X", "-q", "-w", "-v", "ON_ERROR_STOP=1", "-d", address],
        input=statements,
        text=True,
        check=False,
        env={**os.environ, "PGPASSWORD": node.admin_password},
    )
    if done.returncode != 0:
        raise Refused("the primary did not take the passwords")
    return "the primary knows the passwords of .env now"


def say(text: str) -> None:
    print(f"patroni_node.py: {text}", file=sys.stderr, flush=True)


COMMANDS = {"serve": serve, "adopt": adopt, "set-aside": set_aside, "passwords": tell_passwords}


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0] not in COMMANDS:
        say(f"usage: patroni_node.py {' | '.join(COMMANDS)}")
        return 2
    try:
        told = COMMANDS[arguments[0]](node_of(os.environ))
    except Refused as refusal:
        say(str(refusal))
        return 1
    print(told)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
