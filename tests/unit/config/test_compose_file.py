"""What docker-compose.yml promises, read without Docker."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from broker.config import BrokerSettings
from config.make_env import SECRETS
from read_manager.config import ReadManagerSettings
from service.settings import ServiceSettings, env_of
from spark.config import SparkSettings, variable_of
from write_manager.config import WriteManagerSettings

CHECKOUT = Path(__file__).resolve().parents[3]
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((CHECKOUT / "docker-compose.yml").read_text())["services"]
SERVERS = ["postgres-1", "postgres-2", "postgres-3"]
KNOWS = {
    "nginx": {"MYQUEUE_CLUSTER_SECRET"},
    "write_manager": {"MYQUEUE_CLUSTER_SECRET", "MYQUEUE_DATABASE_PASSWORD"},
    "read_manager": {"MYQUEUE_CLUSTER_SECRET", "MYQUEUE_DATABASE_PASSWORD"},
    "broker": {"MYQUEUE_CLUSTER_SECRET"},
    "serve": set(SECRETS) - {"MYQUEUE_CLUSTER_SECRET"},
    "spark": {"MYQUEUE_CLUSTER_SECRET"},
    "spark-master": set(),
    "spark-worker": set(),
    "etcd-1": set(),
}
CLASSES: dict[str, type[ServiceSettings]] = {
    "write_manager": WriteManagerSettings,
    "read_manager": ReadManagerSettings,
    "broker": BrokerSettings,
}


def kind(name: str) -> str:
    if name in ("spark-master", "spark-worker"):
        return name
    return str(SERVICES[name].get("command", [name])[0])


@pytest.mark.parametrize("name", SERVICES)
def test_every_container_is_bounded_and_comes_back(name: str) -> None:
    service = SERVICES[name]
    assert service["mem_limit"]
    assert service["restart"] == "unless-stopped"
    assert service["cap_drop"] == ["ALL"]
    assert service["read_only"] is True
    assert service["logging"]["options"].keys() == {"max-size", "max-file"}
    assert service["env_file"] == ([] if name == "etcd-1" else ".env")


def test_one_door() -> None:
    assert [name for name, service in SERVICES.items() if "ports" in service] == ["nginx"]


@pytest.mark.parametrize("name", SERVICES)
def test_a_secret_is_told_only_to_who_needs_it(name: str) -> None:
    environment = SERVICES[name]["environment"]
    told = SECRETS if SERVICES[name]["env_file"] else ()
    assert {secret for secret in told if secret not in environment} == KNOWS[kind(name)]
    assert all(environment[secret] == "" for secret in SECRETS if secret in environment)


@pytest.mark.parametrize("name", [name for name in SERVICES if kind(name) in CLASSES])
def test_every_variable_is_a_setting_of_its_service(name: str) -> None:
    known = {env_of(field) for field in CLASSES[kind(name)].model_fields}
    assert set(SERVICES[name]["environment"]) - set(SECRETS) <= known


def test_variables_of_the_jobs() -> None:
    known = {variable_of(field) for field in SparkSettings.model_fields}
    assert set(SERVICES["spark"]["environment"]) - set(SECRETS) <= known


def test_the_fourth_broker_is_like_the_third() -> None:
    text = (CHECKOUT / "config" / "broker-4.yml").read_text().replace("broker-4", "broker-3").replace("ID: 4", "ID: 3")
    third = {key: value for key, value in SERVICES["broker-3"].items() if key != "build"}
    assert yaml.safe_load(text)["services"]["broker-3"] == third


def test_nobody_but_postgresql_reaches_etcd() -> None:
    """It asks for no password."""
    networks = {name: service.get("networks", ["default"]) for name, service in SERVICES.items()}
    assert {name for name in networks if "etcd" in networks[name]} == {*SERVERS, "etcd-1"}
    assert networks["etcd-1"] == ["etcd"]


def test_three_hosts_have_three_etcd() -> None:
    hosts = yaml.safe_load((CHECKOUT / "config" / "hosts.yml").read_text())["services"]
    names = ["etcd-1", "etcd-2", "etcd-3"]
    assert [name for name in hosts if name.startswith("etcd")] == names
    for name in SERVERS:
        assert hosts[name]["environment"]["POSTGRES_ETCD"] == " ".join(f"{each}:2379" for each in names)
    for name in names:
        environment = {**SERVICES["etcd-1"]["environment"], **hosts[name]["environment"]}
        assert environment["ETCD_NAME"] == name
        assert environment["ETCD_INITIAL_CLUSTER"] == ",".join(f"{each}=http://{each}:2380" for each in names)
        assert environment["ETCD_ADVERTISE_CLIENT_URLS"] == f"http://{name}:2379"
        assert environment["ETCD_INITIAL_ADVERTISE_PEER_URLS"] == f"http://{name}:2380"


@pytest.mark.parametrize("name", [name for name in SERVICES if "MYQUEUE_WRITE_MANAGER_URLS" in str(SERVICES[name])])
def test_both_write_managers_are_known_to_whoever_calls_them(name: str) -> None:
    urls = SERVICES[name]["environment"]["MYQUEUE_WRITE_MANAGER_URLS"].split(",")
    assert urls == [
        f"http://{each}:{SERVICES[each]['environment']['MYQUEUE_INTERNAL_PORT']}"
        for each in ("write-manager-1", "write-manager-2")
    ]


def test_both_modes_set_the_same_variables() -> None:
    modes = [
        {line.partition("=")[0] for line in (CHECKOUT / "config" / name).read_text().splitlines() if "=" in line}
        for name in (".env.persist", ".env.inmem")
    ]
    assert modes[0] == modes[1]
