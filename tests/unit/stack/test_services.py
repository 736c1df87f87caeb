"""The services of a stack and their command lines."""

from pathlib import Path

import pytest

from stack.config import StackConfig, StackError, load_config
from stack.home import Home, Layout
from stack.primary_record import PrimaryRecord, save_record
from stack.process import Command
from stack.services import Plan, Service, all_names, chosen_names, inner_port_names


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for field in StackConfig.model_fields:
        monkeypatch.delenv(f"MYQUEUE_{field.upper()}", raising=False)


async def run(_command: Command, _stdin: bytes) -> None:
    """Nothing is started here."""


def services_of(tmp_path: Path, **settings: object) -> dict[str, Service]:
    home = Home(tmp_path)
    home.create(0o700)
    config = load_config(home=tmp_path, **settings)
    ports = {name: 11_000 + number for number, name in enumerate(inner_port_names(config))}
    layout = Layout(config.model_dump(mode="json"), "http://127.0.0.1:8080", 8080, ports, chosen_names(config))
    return {service.name: service for service in Plan(home, layout).services(run)}


def test_the_default_stack() -> None:
    assert all_names(load_config()) == [
        "nginx",
        *("write-manager-1", "write-manager-2"),
        *("read-manager-1", "read-manager-2"),
        *("broker-1", "broker-2", "broker-3"),
        *("postgres-1", "postgres-2", "postgres-3"),
    ]


def test_no_secret_on_a_command_line_and_none_of_the_stack_s_own_settings_inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MYQUEUE_PORT", "8080")
    monkeypatch.setenv("MYQUEUE_LOG_LEVEL", "debug")
    services = services_of(tmp_path)
    secrets = Home(tmp_path).secrets()
    for service in services.values():
        line = " ".join(str(part) for part in service.command.argv)
        assert not any(secret in line for secret in vars(secrets).values())
    environment = services["broker-1"].command.env
    assert environment["MYQUEUE_CLUSTER_SECRET"] == secrets.cluster_secret
    assert environment["MYQUEUE_LOG_LEVEL"] == "debug"
    assert "MYQUEUE_PORT" not in environment


def test_read_managers_prefer_different_standbys(tmp_path: Path) -> None:
    services = services_of(tmp_path, read_managers=3)
    preferred = []
    for number in (1, 2, 3):
        argv = [str(part) for part in services[f"read-manager-{number}"].command.argv]
        preferred.append(argv[argv.index("--database-hosts") + 1].partition(",")[0])
    assert preferred[0] != preferred[1]
    assert preferred[0] == preferred[2]
    assert str(services["postgres-2"].port) in preferred[0]


def test_storage_and_number_of_brokers(tmp_path: Path) -> None:
    services = services_of(tmp_path, brokers=5, storage="memory")
    argv = [str(part) for part in services["broker-5"].command.argv]
    assert argv[argv.index("--storage") + 1] == "memory"
    assert argv[argv.index("--broker-id") + 1] == "5"


def test_a_part_of_a_stack(tmp_path: Path) -> None:
    assert set(services_of(tmp_path, services="postgres-1, nginx")) == {"postgres-1", "nginx"}
    with pytest.raises(StackError, match="no such service: broker-9") as caught:
        chosen_names(load_config(services="broker-9"))
    assert caught.value.exit_code == 2


def test_all_bad_settings_at_once() -> None:
    with pytest.raises(StackError) as caught:
        load_config(brokers=0, storage="paper", port=99_999)
    assert caught.value.exit_code == 2
    for name in ("MYQUEUE_BROKERS", "MYQUEUE_STORAGE", "MYQUEUE_PORT"):
        assert name in str(caught.value)


def test_everything_follows_the_record_of_the_primary(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    save_record(tmp_path / "data", PrimaryRecord(7, "postgres-2", 3))
    services = services_of(tmp_path)

    def preferred(name: str) -> int:
        argv = [str(part) for part in services[name].command.argv]
        return int(argv[argv.index("--database-hosts") + 1].partition(",")[0].rpartition(":")[2])

    assert preferred("write-manager-1") == services["postgres-2"].port
    assert services["write-manager-1"].after == ("postgres-2",)
    assert {preferred("read-manager-1"), preferred("read-manager-2")} == {
        services["postgres-1"].port,
        services["postgres-3"].port,
    }
