"""What operators see: the API's description, health, metrics, and one request id through all logs."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import pytest
import requests

from myqueue.protocol.routes import ROUTES
from tests.calls import PARAMETERS, Calls, assert_failure
from tests.cluster import HTTP_SERVICES, WRITE_MANAGERS, Cluster
from tests.waiting import until


@pytest.fixture(scope="module")
def description(stack: Cluster) -> dict[str, Any]:
    answer = requests.get(stack.url + "/openapi.json", timeout=10)
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "application/json")
    document: dict[str, Any] = answer.json()
    return document


def references(value: object) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*(references(inner) for inner in value.values()))
    if isinstance(value, list):
        return set().union(*(references(inner) for inner in value))
    return set()


def test_the_description_is_openapi_3_1(description: dict[str, Any]) -> None:
    assert description["openapi"].startswith("3.1.")
    assert description["info"]["title"]
    assert description["info"]["version"]
    names = []
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            names.append(operation["operationId"])
            assert method in ("get", "post", "put", "patch", "delete")
            assert all(response["description"] for response in operation["responses"].values())
            parameters = operation.get("parameters", [])
            in_path = {p["name"] for p in parameters if p["in"] == "path"}
            assert in_path == set(re.findall(r"{(\w+)}", path))
            assert all(p["required"] for p in parameters if p["in"] == "path")
            assert all("schema" in p for p in parameters)
            if "requestBody" in operation:
                assert operation["requestBody"]["content"]
    assert len(names) == len(set(names))


def test_the_description_has_no_loose_ends(description: dict[str, Any]) -> None:
    for reference in references(description):
        found: Any = description
        assert reference.startswith("#/")
        for part in reference[2:].split("/"):
            found = found[part]
        assert found


def test_the_description_covers_all_routes(description: dict[str, Any]) -> None:
    described = {(method.upper(), path) for path, methods in description["paths"].items() for method in methods}
    assert described == {(route.method, route.path) for route in ROUTES}


def test_every_described_route_is_there(description: dict[str, Any], calls: Calls) -> None:
    """Asked without parameters it may refuse, but never as an unknown path or method."""
    for path, methods in description["paths"].items():
        for method in methods:
            url, headers = calls.url + path.format_map(PARAMETERS), {"Accept": "text/html"} if path == "/" else {}
            with requests.request(method, url, headers=headers, timeout=10, stream=True) as answer:  # some never end
                assert answer.status_code not in (405, 500), f"{method} {path}"
                assert answer.status_code != 404 or answer.json()["error_code"] != 40400, f"{method} {path}"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("phase", ["coverage", pytest.param("fuzzing", marks=pytest.mark.slow)])
def test_answers_are_as_described(stack: Cluster, calls: Calls, tmp_path: Path, phase: str) -> None:
    """Schemathesis invents requests from the description: no answer may be a defect or one that is not in there. First
    those at the bounds of every value, then random ones."""
    topic = calls.topic(f"described-{phase}")
    before = len(calls.get("/topics").json()["topics"])
    calls.producer(topic)
    calls.consumer(topic)
    # Correct requests of these would fill the cluster with partitions.
    only_wrong = '[[operations]]\ninclude-operation-id = "{}"\ngeneration.mode = "negative"\n'
    makers = ("create_topic", "register_producer", "put_topic", "open_producer")
    settings = "".join(only_wrong.format(name) for name in makers)
    (tmp_path / "schemathesis.toml").write_text(settings)
    checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
    command = [sys.executable, "-m", "schemathesis.cli", "run", stack.url + "/openapi.json", "--checks", checks]
    command += ["--exclude-operation-id", "append_batch"]  # it cannot make one
    command += ["--phases", phase, "--max-examples", "10", "--seed", "1", "--request-timeout", "10"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=270)
    assert done.returncode == 0, done.stdout
    assert len(calls.get("/topics").json()["topics"]) - before < 10


@pytest.mark.parametrize("path", ["/docs", "/docs/"])
def test_the_page_needs_nobody_else(stack: Cluster, path: str) -> None:
    """Only relative addresses, and all of them answer; the policy lets the browser ask no other host either."""
    page = requests.get(stack.url + path, timeout=10)
    assert page.status_code == 200
    assert page.headers["Content-Type"].startswith("text/html")
    assert "default-src 'self'" in page.headers["Content-Security-Policy"]
    links = [link for link in re.findall(r'(?:src|href)="([^"]+)"', page.text) if not link.startswith("data:")]
    assert links
    for link in links:
        assert not urlsplit(link).netloc, link
        asset = requests.get(urljoin(stack.url + path, link), timeout=10)
        assert asset.status_code == 200, link
        assert asset.content
        assert asset.headers["Content-Type"].split(";")[0] in ("text/css", "text/javascript")
        if link.endswith("start.js"):
            assert "http://" not in asset.text
            assert "https://" not in asset.text
        if link.endswith(".css"):
            outside = [target for target in re.findall(r"url\(([^)]*)\)", asset.text) if "data:" not in target]
            assert outside == []


@pytest.mark.parametrize("name", HTTP_SERVICES)
def test_health_of_every_service(stack: Cluster, name: str) -> None:
    address = stack.operations_url(name)
    health = requests.get(address + "/healthz", timeout=10)
    assert health.status_code == 200
    assert (health.json()["status"], health.json()["checks"]) == ("success", {})
    ready = requests.get(address + "/readyz", timeout=10)
    if name in WRITE_MANAGERS and name != stack.active_write_manager():
        assert (ready.status_code, "standby" in ready.json()["message"]) == (503, True)
        return
    assert ready.status_code == 200
    checks = ready.json()["checks"]
    assert checks
    assert set(checks.values()) == {"ok"}


@pytest.mark.parametrize("name", HTTP_SERVICES)
def test_metrics_of_every_service(stack: Cluster, name: str) -> None:
    answer = requests.get(stack.operations_url(name) + "/metrics", timeout=10)
    assert answer.status_code == 200
    assert answer.headers["Content-Type"].startswith("text/plain; version=")
    samples = [line for line in answer.text.splitlines() if line and not line.startswith("#")]
    assert any(line.startswith("myqueue_http_requests_total{") for line in samples)
    assert any(line.startswith("myqueue_http_request_seconds_bucket{") for line in samples)
    for line in samples:
        float(line.rpartition(" ")[2])


def test_operations_through_the_port(calls: Calls) -> None:
    assert calls.get("/healthz").json()["status"] == "success"
    assert calls.get("/readyz").json()["status"] == "success"
    assert "myqueue_http_requests_total" in calls.get("/metrics").text


def test_requests_are_counted(stack: Cluster, calls: Calls, topic_name: str) -> None:
    def counted() -> float:
        text = requests.get(stack.address_of(stack.active_write_manager()) + "/metrics", timeout=10).text
        found = re.search(r'^myqueue_http_requests_total{[^}]*route="enqueue"[^}]*status="404"[^}]*} (\S+)', text, re.M)
        return float(found[1]) if found else 0.0

    before = counted()
    assert_failure(calls.produce("no-such-topic", 0, "x"), 404, 40401)
    assert counted() == before + 1


def lines_with(stack: Cluster, name: str, request_id: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stack.log_of(name).splitlines() if request_id in line]


def test_one_request_id_through_all_logs(stack: Cluster, calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name)
    producer, consumer = calls.producer(topic_name), calls.consumer(topic_name)
    leader = calls.partitions(topic_name).json()["partitions"][0]["leader"]
    produced = calls.produce(topic_name, producer, "x")
    consumed = calls.consume(topic_name, consumer)
    refused = calls.produce("no-such-topic", producer, "x")
    writes = stack.active_write_manager()
    hops = {
        produced: ["nginx.access", writes, f"broker-{leader}"],
        consumed: ["nginx.access", writes, f"broker-{leader}"],
        refused: ["nginx.access", writes],
    }
    for answer, names in hops.items():
        request_id = answer.headers["X-Request-Id"]
        for name in names:
            lines = until(
                lambda name=name, request_id=request_id: lines_with(stack, name, request_id),  # type: ignore[misc]
                within_s=5,
                what=f"{request_id} in {name}.log",
            )
            assert all(line["request_id"] == request_id for line in lines)

    def seen() -> list[str]:
        request_id = consumed.headers["X-Request-Id"]
        return [name for name in ("read-manager-1", "read-manager-2") if lines_with(stack, name, request_id)]

    assert len(until(seen, within_s=5, what="a read manager logs it")) == 1, "one read manager answered"


def test_logs_hold_no_secrets_and_no_messages(stack: Cluster, calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name)
    producer = calls.producer(topic_name)
    calls.sent(topic_name, producer, "a-very-private-message", key="a-very-private-key")
    secrets = stack.local.secrets
    for path in stack.local.home.log.glob("*.log"):
        text = path.read_text(errors="replace")
        assert "a-very-private" not in text, path.name
        for secret in (secrets.cluster_secret, secrets.database_password, secrets.admin_password):
            assert secret not in text, path.name
