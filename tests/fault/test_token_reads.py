"""Reads with session tokens while standbys stop to replay for a while: none is older than its token."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import pytest
import requests

from myqueue.protocol import http_headers
from tests.cluster import STANDBYS, Cluster
from tests.integration.test_metadata import replay_paused
from tests.waiting import let_pass

READERS = 6
WRITE_PAUSE_S = 0.05
BETWEEN_PAUSES_S = 0.2


@dataclass
class Written:
    """The topics that exist, and the token of the last change.

    A topic is neither in ``names`` nor in ``gone`` from when its deletion is asked for until it is confirmed: a read
    may list it or not. It stays there when the deletion was answered with an error, since it may have happened.
    """

    names: frozenset[str] = frozenset()
    gone: frozenset[str] = frozenset()
    token: str = ""
    refused: list[str] = field(default_factory=list)


@dataclass
class Reads:
    total: int = 0
    stale: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


@contextmanager
def changing_topics(url: str) -> Iterator[Written]:
    """Topics are made and deleted all the time."""
    written, stop = Written(), threading.Event()

    def change() -> None:
        with requests.Session() as session:
            number = 0
            while not stop.is_set():
                name, old = f"token-{number}", f"token-{number - 5}"
                made = session.post(f"{url}/topics", json={"name": name, "partitions": 1}, timeout=10)
                if made.status_code == 201:
                    names, token = written.names | {name}, made.headers[http_headers.TOKEN]
                    replace(written, names, written.gone, token)
                else:
                    written.refused.append(f"create {name}: {made.status_code} {made.text}")
                if old in written.names:
                    replace(written, written.names - {old}, written.gone, written.token)
                    deleted = session.delete(f"{url}/v1/topics/{old}", timeout=10)
                    if deleted.status_code < 300:
                        token = deleted.headers[http_headers.TOKEN]
                        replace(written, written.names, written.gone | {old}, token)
                    else:
                        written.refused.append(f"delete {old}: {deleted.status_code} {deleted.text}")
                number += 1
                stop.wait(WRITE_PAUSE_S)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield written
    finally:
        stop.set()
        thread.join(20)


def replace(written: Written, names: frozenset[str], gone: frozenset[str], token: str) -> None:
    with _writing:
        written.names, written.gone, written.token = names, gone, token


_writing = threading.Lock()


def read(url: str, written: Written, count: int) -> Reads:
    seen = Reads()
    with requests.Session() as session:
        for _ in range(count):
            with _writing:
                names, gone, token = written.names, written.gone, written.token
            answer = session.get(f"{url}/topics", headers={http_headers.TOKEN: token} if token else {}, timeout=15)
            if answer.status_code != 200:
                if names:
                    seen.failed.append(f"{answer.status_code} {answer.text}")
                continue
            listed = set(answer.json()["topics"])
            seen.total += 1
            # Later changes may show as well: only what had happened before the request counts.
            if gone & listed:
                seen.stale.append(f"deleted before, and listed: {sorted(gone & listed)}")
            with _writing:
                deleting = names - written.names
            if missing := names - deleting - listed:
                seen.stale.append(f"made before, and not listed: {sorted(missing)}")
    return seen


@pytest.mark.parametrize(
    ("pause_s", "reads"),
    [
        (0.1, 600),
        pytest.param(0.1, 3_400, marks=pytest.mark.slow),
        pytest.param(1.0, 3_300, marks=pytest.mark.slow),
        pytest.param(30.0, 3_300, marks=pytest.mark.slow),
    ],
)
@pytest.mark.timeout(600)
def test_no_read_is_older_than_its_token(cluster: Cluster, pause_s: float, reads: int) -> None:
    url = cluster.url
    with changing_topics(url) as written, ThreadPoolExecutor(READERS) as readers:
        let_pass(0.5)
        asked = [readers.submit(read, url, written, reads // READERS) for _ in range(READERS)]
        pauses = 0
        while not all(each.done() for each in asked):
            with ExitStack() as paused:
                for name in STANDBYS:
                    paused.enter_context(replay_paused(cluster.local, name))
                let_pass(pause_s)
                pauses += 1
            let_pass(BETWEEN_PAUSES_S)
    seen = [each.result() for each in asked]
    assert pauses, "the reads were over before a standby stopped to replay"
    assert [stale for each in seen for stale in each.stale] == [], written.refused
    assert [failed for each in seen for failed in each.failed] == []
    assert sum(each.total for each in seen) >= reads - READERS - READERS * 5
