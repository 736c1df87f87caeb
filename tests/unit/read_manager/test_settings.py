"""Settings of a read manager: its name and its address follow from the machine."""

import pytest

from read_manager import config
from read_manager.config import ReadManagerSettings
from service.settings import load

GIVEN = ["--database-hosts", "127.0.0.1:5432", "--cluster-secret", "s" * 16]


def settings_of(*more: str) -> ReadManagerSettings:
    return load(ReadManagerSettings, "read_manager", "", [*GIVEN, *more])


def test_name_and_endpoint_as_given() -> None:
    settings = settings_of("--name", "reader", "--endpoint", "http://r1:80", "--host", "0.0.0.0")
    assert (settings.own_name, settings.own_endpoint) == ("reader", "http://r1:80")


def test_name_and_endpoint_of_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "hostname", lambda: "3f2a9c")
    monkeypatch.setattr(config, "reachable_host", {"0.0.0.0": "172.18.0.7", "127.0.0.1": "127.0.0.1"}.__getitem__)
    settings = settings_of("--host", "0.0.0.0")
    assert (settings.own_name, settings.own_endpoint) == ("read-manager@3f2a9c", "http://172.18.0.7:5001")
    assert settings_of().own_endpoint == "http://127.0.0.1:5001"


@pytest.mark.parametrize("bad", [["--endpoint", "r1:80"], ["--name", ""], ["--host", "0.0.0.0"]])
def test_what_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], bad: list[str]
) -> None:
    def nowhere(host: str) -> str:
        if host == "0.0.0.0":
            raise ValueError("must be given")
        return host

    monkeypatch.setattr(config, "reachable_host", nowhere)
    with pytest.raises(SystemExit) as stopped:
        settings_of(*bad)
    assert stopped.value.code == 2
    named = "--name or MYQUEUE_NAME" if bad[0] == "--name" else "--endpoint or MYQUEUE_ENDPOINT"
    assert named in capsys.readouterr().err
