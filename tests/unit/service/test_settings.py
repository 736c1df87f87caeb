"""Settings: flags over environment over defaults; every problem at once."""

import pytest
from pydantic import Field

from service.settings import ServiceSettings, load


class Example(ServiceSettings):
    port: int = Field(5000, ge=1, le=65535, description="where to listen")
    ratio_s: float = Field(1.0, gt=0, description="a number with 100 % of its unit")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MYQUEUE_CLUSTER_SECRET", "s" * 16)
    monkeypatch.delenv("MYQUEUE_PORT", raising=False)


def test_flags_over_environment_over_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(Example, "example", "", []).port == 5000
    monkeypatch.setenv("MYQUEUE_PORT", "6000")
    assert load(Example, "example", "", []).port == 6000
    assert load(Example, "example", "", ["--port", "7000"]).port == 7000


def test_every_problem_is_reported_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        load(Example, "example", "", ["--port", "0", "--ratio-s", "x", "--cluster-secret", "short"])
    assert stopped.value.code == 2
    printed = capsys.readouterr().err
    for flag in ("--port", "--ratio-s", "--cluster-secret"):
        assert flag in printed
    assert "short" not in printed


def test_help_names_flag_environment_and_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        load(Example, "example", "", ["--help"])
    printed = capsys.readouterr().out
    assert "--port" in printed
    assert "MYQUEUE_PORT" in printed
    assert "default 5000" in " ".join(printed.split())


def test_a_secret_is_not_printed() -> None:
    assert "sss" not in repr(load(Example, "example", "", []))
