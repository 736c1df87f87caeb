"""Lists that come a page at a time."""

from contextlib import closing

from spark.stats_client import StatsReader
from tests.unit.client.scripted_server import Reply, ScriptedServer


def test_all_pages_are_read() -> None:
    server = ScriptedServer()
    pages = (([1, 2], 2), ([3], None)) * 2
    server.script(
        *(
            Reply(200, {"status": "success", "consumers": [{"consumer_id": id} for id in ids], "next": after})
            for ids, after in pages
        )
    )
    with closing(server), closing(StatsReader(server.url)) as reads:
        for listed in (reads.listed_consumers, reads.consumers):
            assert [entry["consumer_id"] for entry in listed()] == [1, 2, 3]
    assert [seen.path for seen in server.seen] == ["/v1/consumers"] * 2 + ["/v1/stats/consumers"] * 2
    assert [seen.query.get("after") for seen in server.seen] == [None, "2"] * 2
