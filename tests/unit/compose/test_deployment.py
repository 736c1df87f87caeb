"""How the tests in containers read the output of the engine, the load balancer and pytest."""

import json
import os
import shutil
from pathlib import Path

import pytest
import requests

from tests.compose import __main__ as harness
from tests.compose import engine as engines
from tests.compose.deployment import CHECKOUT, container_of, copy_checkout, upstreams
from tests.compose.engine import Engine, clean_environment, number
from tests.compose.failure import StageFailed
from tests.compose.stages import SYSTEM_TESTS, places, summary_of
from tests.compose.traffic import Traffic


def line(status: int, upstream: str) -> str:
    return json.dumps({"status": status, "upstream": upstream})


def test_who_answered() -> None:
    log = "\n".join(
        [
            "2026/01/01 nginx: some notice",
            line(200, "172.18.0.5:5001"),
            line(200, "172.18.0.6:5001, 172.18.0.5:5001"),  # the first one failed
            line(200, "172.18.0.6:5001 : 172.18.0.7:5001"),  # in another group of servers
            line(503, "172.18.0.7:5001"),
            line(404, ""),
        ]
    )
    assert upstreams(log) == {"172.18.0.5": 2, "172.18.0.7": 1}


def test_a_container() -> None:
    inspected = {
        "Id": "abc",
        "Name": "/myqueue-test-broker-1-1",
        "RestartCount": 2,
        "Config": {"Labels": {"com.docker.compose.service": "broker-1"}},
        "State": {"Status": "running", "StartedAt": "then", "Health": {"Status": "starting"}},
        "NetworkSettings": {"Networks": {"a": {"IPAddress": ""}, "b": {"IPAddress": "172.18.0.5"}}},
    }
    found = container_of(inspected)
    assert (found.name, found.service, found.address) == ("myqueue-test-broker-1-1", "broker-1", "172.18.0.5")
    assert not found.is_well
    assert container_of({**inspected, "State": {"Status": "running", "StartedAt": "then"}}).is_well


@pytest.mark.parametrize(
    ("text", "expected"), [("1.29.2", (1, 29, 2)), ("5.6.1", (5, 6, 1)), ("2.40.3-desktop.1", (2, 40)), ("", ())]
)
def test_versions(text: str, expected: tuple[int, ...]) -> None:
    assert number(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("...\n12 passed, 3 deselected in 4.50s\n", "12 passed, 3 deselected"),
        ("==== 1 failed, 2 passed in 3.00s (0:00:03) ====\n", "1 failed, 2 passed"),
        ("Traceback", "no summary"),
    ],
)
def test_summaries(text: str, expected: str) -> None:
    assert summary_of(text) == expected


def test_the_system_tests_exist() -> None:
    assert all((CHECKOUT / "tests" / "system" / name).is_file() for name in SYSTEM_TESTS)


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_copy_has_all_but_the_secrets(tmp_path: Path) -> None:
    copy_checkout(tmp_path)
    assert (tmp_path / "docker-compose.yml").is_file()
    assert (tmp_path / "config" / ".env.inmem").is_file()
    assert not (tmp_path / ".env").exists()
    assert not (tmp_path / ".venv").exists()


def test_settings_of_the_user_do_not_reach_the_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MYQUEUE_STORAGE", "memory")
    monkeypatch.setenv("COMPOSE_FILE", "other.yml")
    environment = clean_environment()
    assert not {"MYQUEUE_STORAGE", "COMPOSE_FILE"} & environment.keys()
    assert environment["PATH"] == os.environ["PATH"]


@pytest.mark.parametrize(("required", "code"), [("0", 0), ("1", 1)])
def test_a_machine_without_docker(
    required: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Skips with a clear message, and says so by its exit code where a skip is not allowed."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("MYQUEUE_TESTS_REQUIRED", required)
    assert harness.main(["--cache", str(tmp_path)]) == code
    said = capsys.readouterr().out
    assert "SKIPPED: there is no docker command on the PATH; install Docker to run these tests" in said
    assert (tmp_path / "compose-test" / "transcript.txt").read_text() == said


def docker(folder: Path, does: str) -> Engine:
    """A docker command that behaves like that."""
    path = folder / "docker"
    path.write_text(f"#!/bin/sh\n{does}\n")
    path.chmod(0o755)
    return Engine(str(path), os.environ)


def test_a_docker_that_hangs_counts_as_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "ASK_S", 0.2)
    monkeypatch.setattr(engines, "PULL_S", 0.2)
    engine = docker(tmp_path, "exec sleep 60")
    version, why = engine.version()
    assert version is None
    assert "was not done within" in why
    assert engine.pull("postgres:18") == "not done within 0.2 s"


def test_an_engine_that_refuses_a_stand_in_is_a_failure(tmp_path: Path) -> None:
    engine = docker(tmp_path, "cat > /dev/null; echo no room >&2; exit 1")
    with pytest.raises(StageFailed, match="did not take the stand-in x: no room"):
        engine.load("x", lambda stream: None, ())


def test_what_is_read_in_turn() -> None:
    answer = requests.Response()
    answer.status_code, answer._content = 200, b'{"message": "turn 3"}'
    traffic = Traffic("http://localhost", "t")
    assert traffic.misread(answer, "turn 4") == "turn 3 instead of turn 4"
    assert traffic.misread(answer, "turn 3") is None
    assert traffic.came_again == []
    assert traffic.misread(answer, "turn 4") is None, "it may come again"
    assert traffic.came_again == ["turn 3"]
    answer.status_code = 204
    assert traffic.misread(answer, "turn 4") == "nothing instead of turn 4"


def test_places_of_a_drain() -> None:
    drained = {"f": "drain", "type": "ok", "partition": 1, "offset": 4, "value": "a"}
    assert places([drained, {**drained, "f": "consume", "offset": 5}]) == {(1, 4, "a")}
