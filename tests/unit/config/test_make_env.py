"""The secrets of a cluster in containers."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "config" / "make_env.py"


def make_env(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    # Isolated: it must run before anything is installed.
    return subprocess.run([sys.executable, "-I", "-S", SCRIPT, *arguments], capture_output=True, text=True, check=False)


def values(path: Path) -> dict[str, str]:
    pairs = (line.partition("=") for line in path.read_text().splitlines() if not line.startswith("#"))
    return {name: value for name, _, value in pairs}


@pytest.fixture
def env(tmp_path: Path) -> Path:
    path = tmp_path / ".env"
    assert make_env("--file", path).returncode == 0
    return path


def test_every_secret_is_its_own_and_nobody_else_may_read_them(env: Path) -> None:
    secrets = [value for name, value in values(env).items() if name.endswith(("SECRET", "PASSWORD"))]
    assert len(secrets) == len(set(secrets)) == 4
    assert all(len(secret) == 48 and secret.isalnum() for secret in secrets)
    assert env.stat().st_mode & 0o777 == 0o600


def test_secrets_in_use_are_not_overwritten(env: Path) -> None:
    before = env.read_text()
    again = make_env("--file", env)
    assert again.returncode == 1
    assert "exists and is left as it is" in again.stderr
    assert env.read_text() == before
    assert list(env.parent.iterdir()) == [env]


def test_rotation_changes_one_secret(env: Path) -> None:
    before = values(env)
    assert make_env("--file", env, "--rotate", "REPLICATION_PASSWORD").returncode == 0
    after = values(env)
    assert {name for name in before if before[name] != after[name]} == {"REPLICATION_PASSWORD"}
    assert env.stat().st_mode & 0o777 == 0o600


def test_what_cannot_be_rotated(env: Path) -> None:
    assert make_env("--file", env, "--rotate", "HOME").returncode == 2
    env.write_text("POSTGRES_PASSWORD=a\nPOSTGRES_PASSWORD=b\n")
    refused = make_env("--file", env, "--rotate", "POSTGRES_PASSWORD")
    assert refused.returncode == 1
    assert "2 lines that start with POSTGRES_PASSWORD=" in refused.stderr
    missing = make_env("--file", env.parent / "none", "--rotate", "POSTGRES_PASSWORD")
    assert (missing.returncode, "No such file" in missing.stderr) == (1, True)
