"""A million registrations: the migration, the start, lists, and deleting the topic they belong to."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg2
import pytest
import requests
from alembic import command

from db.migrate import MIGRATION_TIMEOUT_S, config, migrate
from db.primary import Primary
from db.timeouts import time_limit
from stack.local import LocalStack
from tests.calls import token_of
from tests.integration.conftest import address
from tests.integration.test_managers import post
from tests.waiting import until

EACH = 500_000
START_S = 15
RSS_MB = 300


@contextmanager
def database(stack: LocalStack) -> Iterator[Any]:
    connection = psycopg2.connect(
        host="127.0.0.1",
        port=stack.port_of("postgres-1"),
        user=stack.database().user,
        password=stack.secrets.database_password,
        dbname=stack.database().name,
    )
    connection.autocommit = True
    try:
        yield connection.cursor()
    finally:
        connection.close()


def rows(stack: LocalStack, table: str, where: str) -> int:
    # The count goes over many dead rows: the managers' deadline, which holds in this process too, is not for it.
    with time_limit(60), database(stack) as cursor:
        cursor.execute(f"SELECT count(*) FROM {table} WHERE {where}")
        found: int = cursor.fetchone()[0]
    return found


def fill(stack: LocalStack, topic: str) -> None:
    with database(stack) as cursor:
        cursor.execute("SELECT topic_id FROM topic WHERE name = %s", (topic,))
        values = {"last": EACH - 1, "topic": topic, "topic_id": cursor.fetchone()[0]}
        for insert in (
            "INSERT INTO producer_metadata (producer_id, topic_id, topic_name)"
            " SELECT i, %(topic_id)s, %(topic)s FROM generate_series(0, %(last)s) AS i",
            "INSERT INTO consumer (consumer_id, topic_id, topic_name, partition_id)"
            " SELECT i, %(topic_id)s, %(topic)s, 0 FROM generate_series(0, %(last)s) AS i",
            'INSERT INTO consumer_metadata (consumer_id, partition_id, topic_name, "offset")'
            " SELECT i, 0, %(topic)s, 0 FROM generate_series(0, %(last)s) AS i",
            "INSERT INTO id_counter (kind, next_id) VALUES ('producer', %(last)s + 1), ('consumer', %(last)s + 1)",
        ):
            cursor.execute(insert, values)
        cursor.execute("ANALYZE")


def migrated_again_s(stack: LocalStack) -> float:
    """How long the newest migration takes with all of the rows."""
    primary = Primary(address(stack), "test", on_fenced=lambda: None)
    with time_limit(MIGRATION_TIMEOUT_S, blames_server=False), primary.engine.begin() as connection:
        connection.exec_driver_sql("SET statement_timeout = 0")
        settings = config()
        settings.attributes["connection"] = connection
        command.downgrade(settings, "0005")
    started_s = time.monotonic()
    migrate(primary.engine)
    took_s = time.monotonic() - started_s
    primary.close()
    return took_s


def rss_mb(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) // 1024


def started_again_s(stack: LocalStack) -> float:
    stack.stop("write-manager-1")
    started_s = time.monotonic()
    stack.start("write-manager-1")

    def is_ready() -> bool:
        try:
            return requests.get(stack.address_of("write-manager-1") + "/readyz", timeout=2).status_code == 200
        except requests.RequestException:
            return False

    until(is_ready, within_s=60, what="the write manager is ready")
    return time.monotonic() - started_s


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_a_million_registrations(managed: LocalStack) -> None:
    post(managed, "/topics", {"name": "many", "partitions": 1})
    fill(managed, "many")
    managed.stop("write-manager-1")
    migration_s = migrated_again_s(managed)
    managed.start("write-manager-1")
    start_s = started_again_s(managed)
    size_mb = rss_mb(managed.pid("write-manager-1"))
    print(f"migration {migration_s:.1f} s, start {start_s:.1f} s, {size_mb} MB")
    assert migration_s < 120
    assert start_s < START_S
    assert size_mb < RSS_MB

    last = EACH - 1
    sent = {"topic": "many", "producer_id": last, "message": "hello"}
    until(
        lambda: requests.post(managed.url + "/producer/produce", json=sent, timeout=10).status_code == 200,
        within_s=20,
        what="the load balancer has found the write manager again",
    )
    query = {"topic": "many", "consumer_id": str(last)}
    found = requests.get(managed.url + "/consumer/consume", {**query, "wait_ms": "5000"}, timeout=10)
    assert found.json()["message"] == "hello"
    registered = post(managed, "/consumer/register", {"topic": "many", "name": "new"})
    assert registered.json()["consumer_id"] == EACH

    page = requests.get(managed.url + "/v1/consumers", {"after": str(EACH - 7000), "topic": "many"}, timeout=10).json()
    assert len(page["consumers"]) == 1000
    assert page["next"] == EACH - 6000
    query_all, token = {"after": str(EACH - 7000), "limit": "10000"}, token_of(registered)
    page = requests.get(managed.url + "/v1/consumers", query_all, headers=token, timeout=10).json()
    assert (len(page["consumers"]), page["next"]) == (7000, None)

    began_s = time.monotonic()
    deleted = requests.delete(managed.url + "/v1/topics/many", timeout=10)
    delete_s = time.monotonic() - began_s
    assert deleted.status_code == 200, deleted.text
    post(managed, "/topics", {"name": "many", "partitions": 1})
    gone = requests.get(managed.url + "/size", query, timeout=10)
    assert gone.status_code == 404
    post(managed, "/consumer/register", {"topic": "many", "name": "new"}, expect=201)
    until(
        lambda: (
            not rows(managed, "consumer", f"consumer_id <= {EACH}") and not rows(managed, "producer_metadata", "true")
        ),
        within_s=300,
        what="what the deleted topic left is deleted",
        pause_s=1,
    )
    print(f"topic deleted in {delete_s:.2f} s, its rows {time.monotonic() - began_s:.0f} s after")
    assert rows(managed, "consumer_metadata", f"consumer_id <= {EACH}") == 0
