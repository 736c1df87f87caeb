"""What the engine, the load balancer and pytest tell, as the tests of the containers read it."""

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.compose import __main__ as harness
from tests.compose.deployment import CHECKOUT, container_of, copy_checkout, upstreams
from tests.compose.engine import clean_environment, number
from tests.compose.stages import SYSTEM_TESTS, summary_of


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
    told = {
        "Id": "abc",
        "Name": "/myqueue-test-broker-1-1",
        "RestartCount": 2,
        "Config": {"Labels": {"com.docker.compose.service": "broker-1"}},
        "State": {"Status": "running", "StartedAt": "then", "Health": {"Status": "starting"}},
        "NetworkSettings": {"Networks": {"a": {"IPAddress": ""}, "b": {"IPAddress": "172.18.0.5"}}},
    }
    found = container_of(told)
    assert (found.name, found.service, found.address) == ("myqueue-test-broker-1-1", "broker-1", "172.18.0.5")
    assert not found.is_well
    assert container_of({**told, "State": {"Status": "running", "StartedAt": "then"}}).is_well


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
    monkeypatch.setenv("MYQUEUE_COMPOSE_REQUIRED", required)
    assert harness.main(["--cache", str(tmp_path)]) == code
    said = capsys.readouterr().out
    assert "SKIPPED: there is no docker command on the PATH; install Docker to run these tests" in said
    assert (tmp_path / "compose-test" / "transcript.txt").read_text() == said
