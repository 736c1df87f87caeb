"""Settings of a broker: what they derive and what they refuse."""

from pathlib import Path

import pytest

from broker.config import BrokerSettings
from service.settings import load

GIVEN = [
    *("--port", "7001", "--raft-port", "7101", "--data-port", "7201"),
    *("--write-manager-urls", "http://127.0.0.1:7000", "--cluster-secret", "s" * 16),
]


def settings_of(*more: str) -> BrokerSettings:
    return load(BrokerSettings, "broker", "", [*GIVEN, *more])


def test_its_endpoint_follows_from_host_and_port() -> None:
    assert settings_of("--data-dir", "/data").own_endpoint == "http://127.0.0.1:7001"
    assert settings_of("--data-dir", "/data", "--endpoint", "http://b1:80").own_endpoint == "http://b1:80"


def test_its_raft_address_follows_from_host_and_raft_port() -> None:
    assert settings_of("--data-dir", "/data").own_raft_address == "127.0.0.1:7101"
    assert settings_of("--data-dir", "/data", "--raft-address", "b1:81").own_raft_address == "b1:81"


def test_its_data_address_follows_from_host_and_data_port() -> None:
    assert settings_of("--data-dir", "/data").own_data_address == "127.0.0.1:7201"
    assert settings_of("--data-dir", "/data", "--data-address", "b1:82").own_data_address == "b1:82"


def test_memory_needs_no_folder_and_uses_none() -> None:
    assert settings_of("--storage", "memory", "--data-dir", "/data").folder is None
    assert settings_of("--data-dir", "/data").folder == Path("/data")


@pytest.mark.parametrize("bad", [[], ["--data-dir", "/d", "--broker-id", "0"], ["--storage", "tape"]])
def test_bad_settings_exit_with_2(bad: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        settings_of(*bad)
    assert stopped.value.code == 2
    assert "settings are not right" in capsys.readouterr().err
