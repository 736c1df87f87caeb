"""A task's range of offsets while a read manager's metadata is stale."""

import uuid
from collections.abc import Iterator

import pytest

from myqueue.protocol.batch import messages_of
from myqueue.protocol.errors import TopicNotFound
from myqueue.spark import reader
from myqueue.spark.options import batch_read_options
from myqueue.spark.planner import OffsetRange
from myqueue.spark.reader import RangeFetcher
from tests.unit.client.memory_cluster import MemoryCluster
from tests.unit.client.scripted_server import Reply, ScriptedServer, Seen

ROUTING = "/v1/routing/orders"


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    scripted = ScriptedServer()
    yield scripted
    scripted.close()


def values(server: ScriptedServer, topic_id: str, *, fail: bool) -> list[str]:
    given = {"url": server.url, "subscribe": "orders", "failOnDataLoss": str(fail).lower()}
    fetcher = RangeFetcher(batch_read_options(given), OffsetRange("orders", topic_id, 0, 0, 2))
    return [message.value.decode() for rows in fetcher for message in messages_of(rows.messages)]


@pytest.mark.parametrize("fail", [True, False])
def test_another_topic_id_counts_when_it_lasts(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, fail: bool
) -> None:
    """Before: messages that are there were skipped, or said to be lost."""
    cluster = MemoryCluster()
    cluster.put("a", "b")
    before = cluster.routing() | {"topic_id": str(uuid.uuid4())}

    def stale_at_first(seen: Seen) -> Reply:
        is_stale = seen.path == ROUTING and len(server.calls(ROUTING)) < 3
        return Reply(200, before) if is_stale else cluster(seen)

    server.answer = stale_at_first
    assert values(server, str(cluster.topic_id), fail=fail) == ["a", "b"]

    monkeypatch.setattr(reader, "STALE_METADATA_S", 0.2)
    if fail:
        with pytest.raises(TopicNotFound, match="topic 'orders' was deleted and made again"):
            values(server, before["topic_id"], fail=fail)
    else:
        assert values(server, before["topic_id"], fail=fail) == []
