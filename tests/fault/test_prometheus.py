"""A real Prometheus with the configuration, the alerts and the dashboard of config/monitoring, and a real stack."""

import json
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import requests

from myqueue import Admin, Consumer, Producer
from stack.ports import choose_inner_ports
from tests import required
from tests.calls import Calls
from tests.cluster import HTTP_SERVICES, Cluster
from tests.jobs import Inside, Run
from tests.waiting import until

pytestmark = pytest.mark.timeout(180)

MONITORING = Path("config/monitoring")
RULES = ("alerts.yml", "job-alerts.yml")
_METRIC = re.compile(r"\b(?:kafka|myqueue)_[a-z0-9_]+\b|\bup\b")
_VARIABLES = {"$__rate_interval": "1m", "$topic": ".*", "$consumer": ".*"}


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        required.skip(f"{name} is not installed")
    return found


class Prometheus:
    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str, **parameters: str) -> Any:
        answer = requests.get(f"{self.url}/api/v1/{path}", params=parameters, timeout=10)
        assert answer.status_code == 200, f"{parameters}: {answer.text}"
        return answer.json()["data"]

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        return [(each["metric"], float(each["value"][1])) for each in self.get("query", query=expression)["result"]]

    def firing(self) -> dict[str, set[str]]:
        """Names of alerts, with the processes that they are about."""
        found: dict[str, set[str]] = {}
        for alert in self.get("alerts")["alerts"]:
            if alert["state"] == "firing":
                found.setdefault(alert["labels"]["alertname"], set()).add(alert["labels"].get("process", ""))
        return found


@pytest.fixture
def prometheus(cluster: Cluster, tmp_path: Path) -> Iterator[Prometheus]:
    """With the files as they are, but for the address and shorter times."""
    command = program("prometheus")
    settings = (MONITORING / "prometheus.yml").read_text()
    assert '"localhost:80"' in settings
    settings = settings.replace("localhost:80", cluster.url.removeprefix("http://"))
    settings = re.sub(r"scrape_(interval|timeout): \d+s", r"scrape_\1: 3s", settings)
    (tmp_path / "prometheus.yml").write_text(re.sub(r"evaluation_interval: \d+s", "evaluation_interval: 1s", settings))
    for file in RULES:
        alerts = (MONITORING / file).read_text()
        (tmp_path / file).write_text(re.sub(r"for: \d+[smh]", "for: 4s", alerts))
    port = choose_inner_ports(["prometheus"], {}, 0)["prometheus"]
    arguments = [
        f"--config.file={tmp_path}/prometheus.yml",
        f"--storage.tsdb.path={tmp_path}/data",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen([command, *arguments], stdout=log, stderr=log)
    try:

        def is_ready() -> bool:
            with suppress(requests.ConnectionError):
                return requests.get(f"http://127.0.0.1:{port}/-/ready", timeout=5).status_code == 200
            assert process.poll() is None, (tmp_path / "log").read_text()
            return False

        until(is_ready, within_s=30, what="Prometheus is ready")
        yield Prometheus(f"http://127.0.0.1:{port}")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)


def dashboard_expressions() -> list[str]:
    dashboard = json.loads((MONITORING / "grafana-dashboard.json").read_text())
    found = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    assert len(found) > 20
    for variable, value in _VARIABLES.items():
        found = [expression.replace(variable, value) for expression in found]
    return found


def alert_expressions(prometheus: Prometheus) -> list[str]:
    groups = prometheus.get("rules")["groups"]
    assert len(groups) == len(RULES)
    return [rule["query"] for group in groups for rule in group["rules"]]


def test_the_rules_are_valid() -> None:
    for check, file in (("config", "prometheus.yml"), *(("rules", file) for file in RULES)):
        done = subprocess.run(
            [program("promtool"), "check", check, MONITORING / file], capture_output=True, text=True, timeout=30
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_everything_is_scraped_and_a_stopped_broker_fires(
    cluster: Cluster, calls: Calls, prometheus: Prometheus, topic_name: str
) -> None:
    assert Run(calls, Inside(cluster), "partition_metrics").end(rows=1).status_code == 200
    with Admin(cluster.url) as admin:
        admin.create_topic(topic_name, partitions=3)
        admin.register_consumer(topic_name, name="behind", start="earliest")
        with Producer(cluster.url, topic=topic_name) as producer:
            producer.send_many([b"x"] * 100)
        with Consumer(cluster.url, topic=topic_name, name="reads", start="earliest") as consumer:
            next(iter(consumer))

    def are_up() -> bool:
        processes = {labels["process"]: value for labels, value in prometheus.query("myqueue_up")}
        return processes == dict.fromkeys(HTTP_SERVICES, 1.0)

    until(are_up, within_s=30, what="Prometheus has the metrics of all processes")
    until(lambda: [value for _, value in prometheus.query("up")] == [1], within_s=30, what="the one target is up")
    lag = 'kafka_consumergroup_lag_sum{consumergroup="behind"}'
    until(lambda: [value for _, value in prometheus.query(lag)] == [100], within_s=30, what="the lag is there")
    succeeded = 'myqueue_job_last_success_timestamp_seconds{stats_job="partition_metrics"}'
    until(lambda: bool(prometheus.query(succeeded)), within_s=30, what="the run of a job is there")

    expressions = dashboard_expressions() + alert_expressions(prometheus)
    for expression in expressions:
        prometheus.query(expression)  # it is valid
    names = {name for expression in expressions for name in _METRIC.findall(expression)}
    assert len(names) > 20

    def all_exist() -> bool:
        missing = {name for name in names if not prometheus.query(f"count({{__name__={name!r}}})")}
        print("metrics that do not exist:", sorted(missing))
        return not missing

    until(all_exist, within_s=30, what="rules and the dashboard use metrics that exist")
    assert not {"MyqueueProcessDown", "MyqueuePartitionWithoutLeader"} & prometheus.firing().keys()

    cluster.stop("broker-2")
    until(
        lambda: prometheus.firing().get("MyqueueProcessDown") == {"broker-2"},
        within_s=30,
        what="the alert of the stopped broker fires",
    )
    until(lambda: "MyqueueUnderReplicated" in prometheus.firing(), within_s=30, what="partitions lack a copy")
    cluster.start("broker-2")
    until(
        lambda: not {"MyqueueProcessDown", "MyqueueUnderReplicated"} & prometheus.firing().keys(),
        within_s=40,
        what="it is over",
    )


@pytest.mark.slow
def test_a_job_that_fails_fires_until_it_succeeds(cluster: Cluster, calls: Calls, prometheus: Prometheus) -> None:
    inside = Inside(cluster)
    assert Run(calls, inside, "consumer_lag").end("failed", left_out=3).status_code == 200
    fires = {"MyqueueJobFails", "MyqueueJobLeavesConsumersOut"}
    until(lambda: fires <= prometheus.firing().keys(), within_s=60, what="the alerts of the failed run fire")
    assert Run(calls, inside, "consumer_lag").end().status_code == 200
    until(lambda: not fires & prometheus.firing().keys(), within_s=60, what="they are over after one that succeeds")
