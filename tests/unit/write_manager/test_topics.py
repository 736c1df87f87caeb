"""What a write manager says of topics from memory, while another one may have taken over."""

import asyncio
import json
from typing import cast
from uuid import uuid4

import pytest

from db.primary import Primary
from myqueue.protocol.errors import ManagerUnavailable
from tests.http_site import LOG, HttpSite
from write_manager.broker_commands import BrokerCommands
from write_manager.brokers import Brokers
from write_manager.metadata_cache import MetadataCache
from write_manager.topics import Topics, add_catalog_routes, add_topic_routes

SECRET, TOKEN = {"x-myqueue-secret": "x" * 16}, {"x-myqueue-token": "1-10"}


class WriteManagerSite:
    """With the topic `orders` in memory. There is no PostgreSQL."""

    def __init__(self) -> None:
        self.is_verified = True
        away = cast(Primary, None)
        cache = MetadataCache(away, nameless_ttl_s=60, is_verified=lambda: self.is_verified)
        brokers = Brokers(away, cache, LOG, ttl_s=6, heartbeat_interval_s=1)
        topics = Topics(
            away,
            cache,
            brokers,
            cast(BrokerCommands, None),
            LOG,
            max_partitions=10,
            broker_timeout_s=1,
            check_verified=self.check_verified,
        )
        cache.add_topic(
            {
                "name": "orders",
                "topic_id": str(uuid4()),
                "replication": 1,
                "retention_ms": None,
                "retention_bytes": None,
                "partitions": [],
            },
            {},
        )
        self.site = HttpSite()
        add_topic_routes(self.site.router, topics)
        add_catalog_routes(self.site.router, topics, cache, away, self.check_verified)

    def check_verified(self) -> None:
        if not self.is_verified:
            raise ManagerUnavailable(outcome="not_written", retry_after_s=1)

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, object]:
        content = b"" if body is None else json.dumps(body).encode()
        given = {"content-type": "application/json"} if body is not None else {}
        answer = asyncio.run(self.site.ask(method, path, content, **SECRET, **given, **headers))
        return answer.status, json.loads(answer.body).get("outcome")


@pytest.mark.parametrize("path", ["/internal/topics", "/internal/topics/orders"])
def test_a_token_is_not_answered_from_memory_that_may_be_old(path: str) -> None:
    manager = WriteManagerSite()
    assert manager.ask("GET", path, **TOKEN) == (200, None)
    manager.is_verified = False
    assert manager.ask("GET", path, **TOKEN)[0] == 503
    assert manager.ask("GET", path) == (200, None), "without a token, the last that is known will do"


def test_that_a_topic_exists_is_not_said_from_memory_that_may_be_old() -> None:
    manager = WriteManagerSite()
    new, other = {"name": "orders", "partitions": 1}, {"partitions": 7}
    assert manager.ask("POST", "/topics", new)[0] == 409
    assert manager.ask("PUT", "/v1/topics/orders", other)[0] == 409
    manager.is_verified = False
    assert manager.ask("POST", "/topics", new) == (503, "not_written")
    assert manager.ask("PUT", "/v1/topics/orders", other) == (503, "not_written")
