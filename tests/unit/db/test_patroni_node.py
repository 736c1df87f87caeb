"""Patroni's configuration, and what a server in a container does with the data that it finds."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from db import patroni_node
from db.patroni_node import (
    Node,
    Refused,
    adopt,
    await_others,
    configuration,
    dynamic_configuration,
    first_statements,
    has_database,
    includes,
    may_begin,
    node_of,
    postgres_settings,
    refuse_foreign_data,
    set_aside,
    stored,
    undo_unfinished,
)
from stack.postgres import SETTINGS

ENVIRONMENT = {
    "POSTGRES_NAME": "postgres-1",
    "POSTGRES_SERVERS": "postgres-1 postgres-2 postgres-3",
    "POSTGRES_ETCD": "etcd-1:2379 etcd-2:2379",
    "POSTGRES_PASSWORD": "admins",
    "MYQUEUE_DATABASE_PASSWORD": "managers",
    "REPLICATION_PASSWORD": "standbys",
}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return node_of({**ENVIRONMENT, "POSTGRES_FOLDER": str(tmp_path)})


def settings() -> dict[str, str]:
    return postgres_settings(SETTINGS.read_text())


def make_data(node: Node, *names: str) -> None:
    for name in ("PG_VERSION", "global/pg_control", *names):
        (node.data / name).parent.mkdir(parents=True, exist_ok=True)
        (node.data / name).write_text("data")


@contextmanager
def etcd(keys: dict[str, bytes]) -> Iterator[str]:
    """What of etcd's HTTP the start of a server uses."""

    class Keys(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            key = base64.b64decode(body["key"]).decode()
            found = keys.get(key)
            if self.path.endswith("deleterange"):
                del keys[key]
            values = [] if found is None else [{"value": base64.b64encode(found).decode()}] if found else [{}]
            answer = json.dumps({"header": {}, **({"kvs": values} if values else {})}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Keys) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_every_setting_of_the_shared_file_goes_to_all_servers() -> None:
    parameters = dynamic_configuration(settings())["postgresql"]["parameters"]
    lines = [line for line in SETTINGS.read_text().splitlines() if line and not line.startswith("#")]
    assert len(parameters) == len(lines) > 20
    assert (parameters["max_connections"], parameters["shared_buffers"]) == ("100", "64MB")


def test_what_acknowledged_metadata_rests_on() -> None:
    found = dynamic_configuration({})
    assert (found["synchronous_mode"], found["synchronous_mode_strict"]) == ("quorum", True)
    assert found["failsafe_mode"] is True
    assert found["maximum_lag_on_failover"] > 1 << 60
    # Patroni changes values that break its own rule, and only logs that it did.
    assert found["ttl"] >= 20
    assert found["loop_wait"] + 2 * found["retry_timeout"] <= found["ttl"]


def test_the_file_of_a_server(node: Node) -> None:
    found = configuration(node, settings(), may_begin=True)
    assert "data-checksums" in found["bootstrap"]["initdb"]
    assert found["bootstrap"]["dcs"] == dynamic_configuration(settings())
    assert found["etcd3"]["hosts"] == ["etcd-1:2379", "etcd-2:2379"]
    assert found["restapi"]["connect_address"] == "postgres-1:8008"
    assert all("trust" not in line for line in found["postgresql"]["pg_hba"])
    assert "bootstrap" not in configuration(node, settings(), may_begin=False)


def test_changes_over_the_network_ask_for_a_password(node: Node) -> None:
    assert configuration(node, {}, may_begin=False)["restapi"]["authentication"]["password"] == "standbys"


def test_the_first_statements(node: Node) -> None:
    text = first_statements(node)
    assert "GRANT pg_read_all_stats TO myqueue" in text
    assert "GRANT pg_use_reserved_connections TO replicator" in text
    assert text.startswith("SET log_min_error_statement = panic;\n")


@pytest.mark.parametrize("name", ["POSTGRES_PASSWORD", "MYQUEUE_DATABASE_PASSWORD", "REPLICATION_PASSWORD"])
def test_a_password_that_would_end_a_statement_is_refused(name: str) -> None:
    with pytest.raises(Refused, match=f"{name} may have letters") as refusal:
        node_of({**ENVIRONMENT, name: "a'b"})
    assert "a'b" not in str(refusal.value)
    with pytest.raises(Refused, match=f"{name} is not set"):
        node_of({**ENVIRONMENT, name: ""})


def test_a_line_that_is_no_setting_is_refused() -> None:
    assert postgres_settings("# why\n\na = 'b c'\nd = 5 # why\n") == {"a": "b c", "d": "5"}
    with pytest.raises(Refused, match="cannot read"):
        postgres_settings("include 'more.conf'")


def test_data_from_before_patroni_is_refused_until_somebody_decides(node: Node) -> None:
    make_data(node, "myqueue.conf")
    with pytest.raises(Refused, match=r"when it was a primary.* NAME adopt.* NAME set-aside"):
        refuse_foreign_data(node)
    assert "a primary before" in adopt(node)
    refuse_foreign_data(node)
    assert (node.data / "myqueue.conf").read_text() == ""  # Patroni's settings alone count
    with pytest.raises(Refused, match="is Patroni's"):
        set_aside(node)


def test_the_other_servers_keep_their_old_data_beside(node: Node) -> None:
    make_data(node, "myqueue.conf", "standby.signal")
    with pytest.raises(Refused, match="when it was a standby"):
        refuse_foreign_data(node)
    assert "myqueue.before-patroni" in set_aside(node)
    assert not node.data.exists()
    assert (node.folder / "myqueue.before-patroni" / "PG_VERSION").exists()
    make_data(node, "myqueue.conf")
    with pytest.raises(Refused, match="exists: look at what it is"):
        set_aside(node)


def test_patronis_own_data_is_served(node: Node) -> None:
    make_data(node, "patroni.dynamic.json")
    refuse_foreign_data(node)
    undo_unfinished(node, b"7709093310892900385")
    assert node.has_data


def test_a_copy_that_was_cut_off_is_moved_aside(node: Node) -> None:
    (node.data / "base").mkdir(parents=True)
    assert undo_unfinished(node, b"7709093310892900385") == b"7709093310892900385"
    assert not node.data.exists()
    assert (node.folder / "myqueue.incomplete" / "base").exists()


@pytest.mark.parametrize(
    ("name", "initialize", "is_undone"),
    [("postgres-1", b"", True), ("postgres-2", b"", False), ("postgres-1", b"7709093310892900385", False)],
)
def test_a_first_start_that_was_cut_off_is_undone(
    tmp_path: Path, name: str, initialize: bytes, is_undone: bool
) -> None:
    keys = {"/service/myqueue/initialize": initialize}
    with etcd(keys) as address:
        own = {"POSTGRES_FOLDER": str(tmp_path), "POSTGRES_ETCD": address, "POSTGRES_NAME": name}
        node = node_of({**ENVIRONMENT, **own})
        make_data(node, "patroni.dynamic.json")
        assert undo_unfinished(node, stored(node, "initialize")) == (None if is_undone else initialize)
    assert (node.has_data, bool(keys)) == (not is_undone, not is_undone)
    assert (tmp_path / "myqueue.incomplete").exists() == is_undone


def test_what_etcd_has(tmp_path: Path) -> None:
    with etcd({"/service/myqueue/config": b"{}"}) as address:
        node = node_of({**ENVIRONMENT, "POSTGRES_ETCD": f"127.0.0.1:9 {address}"})  # the first one is away
        assert stored(node, "config") == b"{}"
        assert stored(node, "initialize") is None
    assert stored(node, "config") is None


INITIALIZE = "/service/myqueue/initialize"
NO_DATABASE: dict[str, str] = {"state": "stopped", "role": "uninitialized"}
DATABASE = {"state": "stopped", "database_system_identifier": "7709093310892900385"}


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[object]]:
    """What the Patroni of each other server answers, one turn after another; the last one stays."""
    found: dict[str, list[object]] = {"postgres-2": [NO_DATABASE], "postgres-3": [NO_DATABASE]}
    real = patroni_node.asked

    def asked(address: str, path: str, body: object = None) -> object:
        if path != "/patroni":
            return real(address, path, body)
        turns = found[address.partition(":")[0]]
        return turns.pop(0) if len(turns) > 1 else turns[0]

    monkeypatch.setattr(patroni_node, "asked", asked)
    monkeypatch.setattr(patroni_node, "ASK_AGAIN_S", 0.01)
    return found


@contextmanager
def beside_etcd(folder: Path, keys: dict[str, bytes], name: str = "postgres-1") -> Iterator[Node]:
    with etcd(keys) as address:
        own = {"POSTGRES_FOLDER": str(folder), "POSTGRES_ETCD": address, "POSTGRES_NAME": name}
        yield node_of({**ENVIRONMENT, **own})


@pytest.mark.usefixtures("answers")
def test_the_very_first_start(tmp_path: Path) -> None:
    """Also when it was cut off, while the database was made or after."""
    with beside_etcd(tmp_path, {}) as node:
        assert may_begin(node)
    with beside_etcd(tmp_path, {INITIALIZE: b""}) as node:
        make_data(node)
        assert may_begin(node)
        assert not node.has_data
    with beside_etcd(tmp_path, {INITIALIZE: b"7709093310892900385"}) as node:
        make_data(node)
        assert not may_begin(node)
        assert node.has_data
    with beside_etcd(tmp_path / "2", {}, "postgres-2") as node:
        assert not may_begin(node)


@pytest.mark.parametrize(("name", "keys"), [("postgres-1", {}), ("postgres-2", {}), ("postgres-2", {INITIALIZE: b""})])
def test_an_etcd_that_knows_of_no_cluster_makes_no_primary_of_data(
    tmp_path: Path, name: str, keys: dict[str, bytes]
) -> None:
    with beside_etcd(tmp_path, keys, name) as node:
        make_data(node, "patroni.dynamic.json", "adopted")  # both may come with a copy: they are nobody's word
        with pytest.raises(Refused, match=r"etcd knows of no cluster.* NAME adopt"):
            may_begin(node)
        adopt(node)
        assert may_begin(node)
        assert not node.word.is_relative_to(node.data)  # a copy of this data does not have it


def test_somebodys_word_is_good_for_one_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    monkeypatch.setattr(patroni_node, "RUNTIME", tmp_path)
    monkeypatch.setattr("os.execvpe", lambda program, *_: started.append(program))
    with beside_etcd(tmp_path, {}) as node:
        make_data(node, "patroni.dynamic.json")
        adopt(node)
        patroni_node.serve(node)
        assert started == ["patroni"]
        assert "bootstrap" in json.loads((tmp_path / "patroni.json").read_text())
        with pytest.raises(Refused, match="etcd knows of no cluster"):
            patroni_node.serve(node)


def test_no_answer_of_etcd_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real, attempts = patroni_node.asked, iter([None, None])
    monkeypatch.setattr(patroni_node, "ASK_AGAIN_S", 0.01)
    monkeypatch.setattr(patroni_node, "asked", lambda *request: next(attempts, real(*request)))
    with beside_etcd(tmp_path, {INITIALIZE: b"7709093310892900385"}) as node:
        make_data(node, "patroni.dynamic.json")
        assert not may_begin(node)
    assert capsys.readouterr().err.count("no etcd answers") == 1


def test_no_database_is_made_before_all_others_said_that_they_have_none(
    node: Node, answers: dict[str, list[object]], capsys: pytest.CaptureFixture[str]
) -> None:
    answers["postgres-2"], answers["postgres-3"] = [None, None, NO_DATABASE], [*[None] * 30, NO_DATABASE]
    assert await_others(node)
    assert capsys.readouterr().err.count("before postgres-2 and postgres-3 said") == 1
    answers["postgres-3"] = [*[None] * 30, DATABASE]
    assert not await_others(node)


def test_a_cluster_that_another_one_begins_meanwhile_is_joined(
    tmp_path: Path, answers: dict[str, list[object]]
) -> None:
    keys: dict[str, bytes] = {}

    class Late(list[object]):
        def pop(self, *_: object) -> object:
            keys[INITIALIZE] = b"7709093310892900385"
            return super().pop(0)

    answers["postgres-3"] = Late([None, NO_DATABASE])
    with beside_etcd(tmp_path, keys) as node:
        assert not may_begin(node)


def test_settings_that_were_changed_are_told() -> None:
    there = {"ttl": 20, "postgresql": {"parameters": {"max_connections": 100, "more": 1}}, "pause": False}
    assert includes(there, {"ttl": "20", "postgresql": {"parameters": {"max_connections": "100"}}})
    assert not includes(there, {"postgresql": {"parameters": {"max_connections": "200"}}})
    assert not includes({}, dynamic_configuration({}))


def test_who_has_a_database() -> None:
    assert has_database({"state": "running", "database_system_identifier": "7709093310892900385"})
    assert not has_database({"state": "uninitialized"})
    assert not has_database(None)


def test_an_unknown_word_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert patroni_node.main(["promote"]) == 2
    assert "usage" in capsys.readouterr().err
