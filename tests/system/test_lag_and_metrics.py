"""What operators watch: the lag of all named consumers, and the metrics of all processes at one address."""

import json
import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from myqueue import Admin, Consumer, Producer
from myqueue.cli.app import app
from tests.calls import Calls
from tests.cluster import HTTP_SERVICES, Cluster
from tests.waiting import until

Samples = dict[str, list[tuple[dict[str, str], float]]]


def scraped(calls: Calls) -> Samples:
    answer = calls.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["Content-Type"].startswith("text/plain; version=")
    found: Samples = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def lag_of(calls: Calls, topic: str) -> dict[str, float]:
    """By consumer."""
    lags = scraped(calls).get("kafka_consumergroup_lag_sum", [])
    return {labels["consumergroup"]: value for labels, value in lags if labels["topic"] == topic}


def test_one_address_has_the_metrics_of_all_processes(stack: Cluster, calls: Calls) -> None:
    def whole() -> Samples | None:
        """A scrape of a busy machine may miss the metrics of a process."""
        found = scraped(calls)
        servers = found.get("myqueue_postgres_up", [])
        is_whole = len(found["myqueue_up"]) == len(HTTP_SERVICES) and all(up for _, up in found["myqueue_up"] + servers)
        return found if is_whole else None

    found = until(whole, within_s=30, what="all processes are up")
    assert {labels["process"]: value for labels, value in found["myqueue_up"]} == dict.fromkeys(HTTP_SERVICES, 1.0)
    assert {labels["role"] for labels, _ in found["myqueue_up"]} == {"write_manager", "read_manager", "broker"}
    assert {labels["process"] for labels, _ in found["myqueue_http_requests_total"]} == set(HTTP_SERVICES)
    active = {labels["process"] for labels, value in found["myqueue_write_manager_active"] if value}
    assert active == {stack.active_write_manager()}
    assert [labels for labels, _ in found["kafka_brokers"]] == [{}], "of the cluster, not of a process"
    servers = {labels["server"]: value for labels, value in found["myqueue_postgres_up"]}
    assert servers == {"1": 1, "2": 1, "3": 1}
    assert (
        sum(value for labels, value in found["myqueue_postgres_primary"] if labels["process"] == "read-manager-1") == 1
    )
    assert len({labels["server"] for labels, _ in found["myqueue_postgres_replay_lag_bytes"]}) == 2


def test_metrics_name_no_secret_and_no_address(stack: Cluster, calls: Calls) -> None:
    text = calls.get("/metrics").text
    assert stack.secret not in text
    assert not re.search(r"\b127\.0\.0\.1\b|http://|localhost", text)


def test_lag_of_a_named_consumer_is_measured_while_it_reads_and_after(calls: Calls, url: str, topic_name: str) -> None:
    with Admin(url) as admin:
        admin.create_topic(topic_name, partitions=2)
        for name in ("slow", "quick"):
            admin.register_consumer(topic_name, name=name, start="earliest")
        admin.register_consumer(topic_name, start="earliest")
        with Producer(url, topic=topic_name) as producer:
            producer.send_many([b"x"] * 100)
        until(
            lambda: lag_of(calls, topic_name) == {"slow": 100, "quick": 100},
            within_s=30,
            what="both are 100 behind, and the one without a name is left out",
        )
        with Consumer(url, topic=topic_name, name="quick") as consumer:
            for _, _message in zip(range(60), consumer, strict=False):
                pass
        # A scrape of a busy machine may miss its deadline, and has no lag then.
        until(lambda: lag_of(calls, topic_name).get("quick", 100) <= 40, within_s=10, what="cursors in memory count")
        left = admin.lag("quick", topic_name).messages
        found = {lag.name: lag.messages for lag in admin.worst_lag(1000).consumers if lag.topic == topic_name}
        assert found == {"slow": 100, "quick": left}

    def offsets() -> list[float] | None:
        found = scraped(calls).get("kafka_topic_partition_current_offset", [])
        ends = [value for labels, value in found if labels["topic"] == topic_name]
        return ends if len(ends) == 2 else None

    assert sum(until(offsets, within_s=30, what="offsets of both partitions")) == 100


def test_the_command_shows_the_worst_of_all_topics(url: str, calls: Calls, topic_name: str, tmp_path: Path) -> None:
    runner = CliRunner(env={"MYQUEUE_URL": url, "MYQUEUE_PROFILE": None, "XDG_CONFIG_HOME": str(tmp_path)})
    with Admin(url) as admin:
        admin.create_topic(topic_name, partitions=1)
        for name in ("a", "b"):
            admin.register_consumer(topic_name, name=name, start="earliest")
        with Producer(url, topic=topic_name) as producer:
            producer.send_many([b"x"] * 50_000)
        admin.seek("b", topic_name, to=10_000, partition=0)

    def is_measured() -> bool:
        return lag_of(calls, topic_name) == {"a": 50_000, "b": 40_000}

    until(is_measured, within_s=30, what="both are measured")
    done = runner.invoke(app, ["consumer", "lag", "-n", "1", "-o", "json"])
    assert done.exit_code == 0, done.output
    listed = json.loads(done.stdout)
    assert [(row["topic"], row["name"], row["messages"]) for row in listed["consumers"]] == [(topic_name, "a", 50_000)]
    assert (listed["others"] >= 1, listed["not_measured"]) == (True, 0)
    shown = runner.invoke(app, ["consumer", "lag", "--limit", "2"])
    assert [line.split()[1:4] for line in shown.stdout.splitlines()[1:]] == [
        [topic_name, "a", "50000"],
        [topic_name, "b", "40000"],
    ]
    deleted = runner.invoke(app, ["consumer", "delete", topic_name, "a", "--yes"])
    assert deleted.exit_code == 0, deleted.output
    with Admin(url) as admin:  # a standby may not know yet that it is deleted
        until(lambda: not admin.consumers(name="a", topic=topic_name), within_s=10, what="the consumer is gone")
        admin.delete_consumer("b", topic_name)
        assert admin.consumers(topic_name) == []
