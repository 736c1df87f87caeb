"""The scheduler without Spark: while nothing answers it says so, waits, and can be stopped."""

import socket
import threading
from typing import Any, cast

import structlog
from structlog.testing import capture_logs

from myqueue.transport import RetryPolicy
from spark.config import Access, load
from spark.scheduler import JobScheduler
from spark.stats_client import StatsClient
from tests.waiting import until


def test_a_cluster_that_is_away() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        stopping = threading.Event()
        calls = StatsClient(Access(url, (url,), "secret"), retry=RetryPolicy(deadline_s=0.3))
        with capture_logs() as said:
            scheduler = JobScheduler("tests", load(url=url), cast(Any, None), calls, structlog.get_logger(), stopping)
            starting = threading.Thread(target=scheduler.start)
            starting.start()
            until(lambda: said, within_s=30, what="it says that the cluster is away")
            stopping.set()
            starting.join(30)
            scheduler.stop()
    assert not starting.is_alive()
    assert (said[0]["event"], said[0]["url"]) == ("the cluster does not answer", url)
    assert {entry["event"] for entry in said} == {"the cluster does not answer"}
