"""Commands to a real broker under epochs of write managers, old and new."""

from typing import Any

import requests

from myqueue.protocol import http_headers
from tests.integration.broker_process import BrokerProcess, Registrar
from tests.waiting import until

STALE = (409, 40914)


def refusal(answer: requests.Response) -> tuple[int, int]:
    return answer.status_code, answer.json().get("error_code", 0)


def command(
    broker: BrokerProcess, method: str, path: str, body: dict[str, Any] | None, epoch: int | None
) -> requests.Response:
    headers = {} if epoch is None else {http_headers.EPOCH: str(epoch)}
    return broker.http.request(method, broker.path() + path, json=body, headers=headers, timeout=10)


def delete(broker: BrokerProcess, report: dict[str, Any], epoch: int) -> requests.Response:
    known = {"incarnation": report["incarnation"], "configuration": report["configuration_index"]}
    return command(broker, "DELETE", "", known, epoch)


def all_commands(broker: BrokerProcess, epoch: int | None) -> list[requests.Response]:
    member = {"broker_id": broker.broker_id, "incarnation": broker.incarnation()}
    spec = {"topic": "orders", "founders": [member], "retention_ms": None, "retention_bytes": None}
    change = {"step": "remove", "member": member, "expected": 99}
    known = {"incarnation": "0" * 16, "configuration": 0}
    sent: list[tuple[str, str, dict[str, Any]]] = [
        ("PUT", "", spec),
        ("POST", "/members", change),
        ("POST", "/rebuild", {"incarnation": "0" * 16}),
        ("POST", "/leader", {"broker_id": 999}),
        ("DELETE", "", known),
    ]
    return [command(broker, method, path, body, epoch) for method, path, body in sent]


def assert_refused(broker: BrokerProcess, epoch: int | None) -> None:
    for answer in all_commands(broker, epoch):
        assert refusal(answer) == STALE
        assert answer.json()["details"] == {"epoch": 5}


def test_older_epochs_are_refused_also_after_a_kill(broker: BrokerProcess, registrar: Registrar) -> None:
    broker.create()  # by a write manager that knows no epochs
    broker.await_lead()
    assert broker.append([b"a"]).status_code == 200
    answers = all_commands(broker, 5)
    assert [answer.status_code for answer in answers] == [200, 409, 409, 409, 409]
    assert STALE not in [refusal(answer) for answer in answers]
    assert_refused(broker, 4)
    assert_refused(broker, None)
    broker.kill()
    broker.start()
    assert_refused(broker, 4)
    assert_refused(broker, None)
    until(lambda: refusal(all_commands(broker, 5)[0])[0] == 200, within_s=10, what="the same epoch is taken")
    assert broker.read_all() == [b"a"]
    assert command(broker, "DELETE", "", None, 6).status_code == 415  # with an epoch it names the replica
    assert command(broker, "DELETE", "", None, 5).json()["details"] == {"epoch": 6}


def test_a_delete_goes_by_what_the_broker_reported(broker: BrokerProcess, registrar: Registrar) -> None:
    broker.create()
    broker.await_lead()
    report = until(
        lambda: registrar.reports.get(broker.broker_id, {}).get(0), within_s=10, what="the partition is reported"
    )
    learner = {"step": "add_learner", "member": {"broker_id": 77, "incarnation": "7" * 16}, "expected": 0}
    expected = report["configuration_index"]
    assert command(broker, "POST", "/members", {**learner, "expected": expected}, 1).status_code == 200
    answer = delete(broker, report, 1)
    assert refusal(answer) == (409, 40902)
    assert "newer than" in answer.json()["message"]

    def is_deleted() -> bool:
        return delete(broker, registrar.reports[broker.broker_id][0], 1).status_code == 200

    until(is_deleted, within_s=10, what="the next report has what a delete needs")
