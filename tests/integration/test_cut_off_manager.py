"""A write manager that loses only its way to PostgreSQL: it goes on answering, and everybody leaves it."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import requests

from myqueue.protocol import http_headers, internal
from stack.local import LocalStack
from tests.fault.links import Doors, Way
from tests.integration.broker_process import BrokerProcess
from tests.integration.manager_pair import SECRET, STARTED_S, ManagerPair, ManagerProcess, manager_pair
from tests.waiting import until


@pytest.fixture
def doors(trio: LocalStack) -> Iterator[Doors]:
    """To each server of PostgreSQL."""
    hosts = dict[Way, str](((1, number), host) for number, host in enumerate(trio.database().hosts.split(",")))
    made = Doors(hosts)
    for way, host in hosts.items():
        made.lead_to(way, host)
    with closing(made):
        yield made


@pytest.fixture
def pair(trio: LocalStack, tmp_path: Path) -> Iterator[ManagerPair]:
    with manager_pair(trio.database(), tmp_path) as made:
        yield made


def create_topic(manager: ManagerProcess, name: str) -> requests.Response:
    return requests.post(f"{manager.url}/topics", json={"name": name, "partitions": 1}, timeout=10)


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_brokers_follow_the_one_that_takes_over(doors: Doors, pair: ManagerPair, tmp_path: Path) -> None:
    behind_doors = ",".join(doors.address(way) for way in sorted(doors.ways))
    cut_off = pair.add("write-manager-1", **{"database-hosts": behind_doors})
    standby = pair.add("write-manager-2")
    cut_off.start()
    cut_off.await_active(within_s=STARTED_S)
    standby.start()
    urls = f"{cut_off.internal_url},{standby.internal_url}"
    with closing(BrokerProcess(tmp_path / "broker", urls, "--cluster-secret", SECRET)) as broker:
        broker.start()
        created = until(
            lambda: found if (found := create_topic(cut_off, "before")).status_code == 201 else None,
            within_s=20,
            what="the broker is registered",
        )
        doors.shut(*doors.ways)
        standby.await_active(within_s=20)
        status = cut_off.status()
        assert status is not None
        assert (status["active"], bool(status["degraded"])) == (True, True), "it cannot know"
        until(
            lambda: create_topic(standby, "after").status_code == 201,
            within_s=15,
            what="the broker is registered with the new one",
        )

        token = {http_headers.TOKEN: created.headers[http_headers.TOKEN], http_headers.SECRET: SECRET}
        catalog = requests.get(cut_off.internal_url + internal.CATALOG_TOPICS.path, headers=token, timeout=5)
        assert catalog.status_code == 503, "another one may have stored something newer"
        known = requests.put(f"{cut_off.url}/v1/topics/before", json={"partitions": 1}, timeout=5)
        assert (known.status_code, known.json()["outcome"]) == (503, "not_written")

        doors.open()
        assert cut_off.exit_status(within_s=20) == 0
