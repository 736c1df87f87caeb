"""Lists that come a page at a time, and writes that follow the active write manager."""

from contextlib import closing

from myqueue.protocol.errors import StandbyManager
from spark.config import Access
from spark.stats_client import StatsClient, StatsReader
from tests.unit.client.scripted_server import Reply, Reset, ScriptedServer


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


def test_results_go_to_the_write_manager_that_takes_over() -> None:
    """Killed after it has read the request: the run is asked for again, with the same key, and the token is learnt."""
    first, second = ScriptedServer(), ScriptedServer()
    begun = {"status": "success", "run_id": 7, "lease_s": 30}
    standby = Reply(503, StandbyManager().to_body(None), {"Retry-After": "1"})
    first.script(Reset())
    first.answer = lambda _: standby
    second.script(standby, Reply(200, {"active": False, "epoch": None}))
    second.answer = lambda _: Reply(201, begun, {"X-Myqueue-Epoch": "2", "X-Myqueue-Token": "1.0-10"})
    calls = StatsClient(Access(first.url, (first.url, second.url), "secret"))
    with closing(first), closing(second), closing(calls):
        assert calls.begin("consumer_lag", "tests", "manual", None)["run_id"] == 7
        assert calls.renew(7, within_s=5) == begun
    written = [seen for seen in first.seen + second.seen if seen.path == "/internal/jobs/runs"]
    assert len({seen.key for seen in written}) == 1
    assert len([seen for seen in first.seen if seen.method == "POST"]) <= 2
    assert [seen.path for seen in second.seen[-2:]] == ["/internal/jobs/runs", "/internal/jobs/runs/7/renew"]
