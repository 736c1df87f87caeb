"""`myqueue doctor`: looks at every tier, from outside to inside, through the one port that everybody uses."""

import json
import shutil
import socket
import textwrap
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import asdict
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import typer

import myqueue
from myqueue.cli import diagnosis
from myqueue.cli.diagnosis import Connection, Finding, Greeting, RoundTrip, WriteProbe, skipped
from myqueue.cli.failures import REFUSED
from myqueue.cli.output import Output, Styled, plural
from myqueue.cli.session import Session, command
from myqueue.descriptions import ClusterInfo, PartitionInfo, Readiness, cluster_info, partition_info
from myqueue.http_connection import HttpConnection, NoResponse, RawResponse, TlsFailed
from myqueue.protocol import routes
from myqueue.protocol.errors import GrantInvalid, InvalidRequest, MyQueueError, NoTopics, TopicNotFound
from myqueue.transport import RetryPolicy, error_of, json_of
from myqueue.version import VERSION

T = TypeVar("T")

PATIENCE_S = 4.0  # with one question, unless --timeout says less
PARTITIONS_S = 6.0  # with all topics
ASKED_AT_ONCE = 8
MARGIN = 24  # in front of what is found
NO_TOPIC_ID = str(uuid.UUID(int=0))
_STYLES = {"ok": "green", "warning": "yellow", "failure": "bold red", "skipped": "dim"}


def register(app: typer.Typer) -> None:
    command(app, "doctor")(doctor)


def doctor(session: Session) -> None:
    """Look at every tier and say what is wrong and what to do.

    From outside to inside: the address, the load balancer, read managers, the write manager, PostgreSQL, brokers,
    partitions, clocks, versions, and a message that goes all the way on a topic of its own, which is deleted again.
    All of it goes through the cluster's one port. It ends with 1 if something fails; warnings are no failure.
    """
    findings = []
    patience_s = min(PATIENCE_S, session.settings.timeout_s)
    for finding in examine(session.url, session.settings.url_from, patience_s):
        findings.append(finding)
        if not session.output.as_json:
            show(session.output, finding)
    failed = [finding.tier for finding in findings if finding.state == "failure"]
    warned = [finding.tier for finding in findings if finding.state == "warning"]
    if session.output.as_json:
        state = "failure" if failed else "warning" if warned else "ok"
        session.output.document({"url": session.url, "state": state, "findings": [asdict(each) for each in findings]})
    else:
        session.output.text(verdict(failed, warned))
    if failed:
        raise typer.Exit(REFUSED)


def show(output: Output, finding: Finding) -> None:
    _show(output, f"{finding.state:<8} {finding.tier:<14} ", finding.what, _STYLES[finding.state])
    if finding.advice is not None:
        _show(output, f"{'':<{MARGIN}}-> ", finding.advice, "")


def _show(output: Output, start: str, text: str, style: str) -> None:
    """Wrapped where people look, one line for whoever searches."""
    if output.on_terminal:
        width = max(MARGIN + 20, shutil.get_terminal_size().columns)
        later = " " * len(start)
        start, text = "", textwrap.fill(text, width, initial_indent=start, subsequent_indent=later)
    output.text(Styled(start + text, style))


def verdict(failed: list[str], warned: list[str]) -> Styled:
    warnings = plural(len(warned), "warning")
    if failed:
        more = f", {warnings}" if warned else ""
        return Styled(f"{plural(len(failed), 'failure')}{more}: begin with the first one ({failed[0]})", "bold red")
    if warned:
        return Styled(f"it works, with {warnings}: {', '.join(warned)}", "yellow")
    return Styled("all is well", "green")


def examine(url: str, url_from: str, patience_s: float) -> Iterator[Finding]:
    """One finding of each tier, as soon as it is known."""
    connection = connect(url, patience_s)
    yield diagnosis.of_address(url, url_from, connection)
    if connection.problem is not None:
        yield skipped(diagnosis.THE_REST, "nothing answers there")
        return
    greeting = greet(url, patience_s)
    yield diagnosis.of_balancer(greeting)
    if not greeting.ours:
        yield skipped(diagnosis.THE_REST, "it is behind the load balancer")
        return
    asker = Asker(url, patience_s)
    ready, cluster = asker.readiness(), asker.cluster()
    yield diagnosis.of_read_managers(greeting, cluster)
    probe = asker.write_probe()
    yield diagnosis.of_write_manager(probe, ready, cluster)
    if greeting.service is None:
        yield skipped(diagnosis.POSTGRES, "only read managers tell")
        yield skipped(diagnosis.BROKERS, "only read managers tell which there are")
        yield skipped(diagnosis.PARTITIONS, "only read managers tell")
    else:
        yield diagnosis.of_postgres(ready, cluster)
        reached = asker.brokers(cluster)
        yield diagnosis.of_brokers(cluster, reached, fresh=probe.answered)
        yield asker.partitions(frozenset(broker for broker, problem in reached.items() if problem is not None))
    yield diagnosis.of_clock(greeting.clock_ahead_s, greeting.seconds)
    yield diagnosis.of_versions(VERSION, asker.version())
    if probe.answered and greeting.service is not None:
        yield diagnosis.of_round_trip(go_round(url, patience_s))
    else:
        yield skipped(diagnosis.ROUND_TRIP, "it needs read managers and the write manager")


def connect(url: str, patience_s: float) -> Connection:
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    try:
        found = _within(patience_s, lambda: socket.getaddrinfo(host, port, proto=socket.IPPROTO_TCP))
    except TimeoutError:
        return Connection(host, port, problem=f"nobody tells its address within {patience_s:g} s")
    except UnicodeError:
        return Connection(host, port, problem="hosts cannot have such a name")
    except OSError as error:
        return Connection(host, port, problem=_why(error))
    addresses = tuple(str(address[0]) for *_, address in found)
    started = time.monotonic()
    try:
        socket.create_connection((host, port), patience_s / 2).close()
    except ConnectionRefusedError as error:
        return Connection(host, port, addresses, _why(error), refused=True)
    except OSError as error:
        return Connection(host, port, addresses, _why(error))
    return Connection(host, port, addresses, seconds=time.monotonic() - started)


def greet(url: str, patience_s: float) -> Greeting:
    connection = HttpConnection(url)
    started = time.time()
    try:
        raw = connection.exchange("GET", routes.HEALTHZ.path, {}, connect_s=patience_s / 2, read_s=patience_s)
    except NoResponse as error:
        return Greeting(problem=error.message, no_tls=isinstance(error, TlsFailed))
    finally:
        connection.close()
    seconds = time.time() - started
    found = json_of(raw)
    body = found if isinstance(found, dict) else {}
    ahead_s = None
    with suppress(TypeError, ValueError):
        # It tells whole seconds: on average, half of one has passed since.
        ahead_s = started + seconds / 2 - parsedate_to_datetime(raw.headers.get("Date", "")).timestamp() - 0.5
    return Greeting(
        status=raw.status,
        server=raw.headers.get("Server", ""),
        content_type=raw.headers.get("Content-Type", ""),
        ours=body.get("status") in ("success", "failure") and ("service" in body or "error_code" in body),
        service=body.get("service") if raw.status == 200 else None,
        message=str(body.get("message", f"HTTP {raw.status}")),
        seconds=seconds,
        clock_ahead_s=ahead_s,
    )


class Asker:
    """One attempt for each question: what has to be tried twice is worth telling."""

    def __init__(self, url: str, patience_s: float) -> None:
        self._url = url
        self._patience_s = patience_s

    def readiness(self) -> Readiness | None:
        try:
            raw = self._exchange(routes.READYZ)
        except NoResponse:
            return None
        found = json_of(raw)
        checks = found.get("checks") if isinstance(found, dict) else None
        return Readiness(raw.status == 200, checks) if isinstance(checks, dict) else None

    def cluster(self) -> ClusterInfo | None:
        try:
            return cluster_info(self.ask(routes.CLUSTER))
        except (MyQueueError, KeyError):
            return None

    def version(self) -> str | None:
        try:
            return str(self.ask(routes.OPENAPI)["info"]["version"])
        except (MyQueueError, KeyError):
            return None

    def write_probe(self) -> WriteProbe:
        """A topic without a name: a write manager refuses it, nothing is written."""
        try:
            self.ask(routes.CREATE_TOPIC, body={})
        except InvalidRequest:
            return WriteProbe(answered=True)
        except MyQueueError as error:
            return WriteProbe(answered=False, message=error.message)
        return WriteProbe(answered=False, message="what answers there takes a topic without a name")

    def brokers(self, cluster: ClusterInfo | None) -> dict[int, str | None]:
        """What keeps each one from answering. Without a grant a broker refuses to tell anything, but it does answer."""

        def problem(broker_id: int) -> str | None:
            path = {"broker_id": broker_id, "topic_id": NO_TOPIC_ID, "partition_id": 0}
            try:
                self.ask(routes.FETCH_BATCHES, path, {"offset": 0})
            except GrantInvalid:
                return None
            except MyQueueError as error:
                return error.message
            return None

        ids = [broker.broker_id for broker in cluster.brokers] if cluster else []
        with ThreadPoolExecutor(ASKED_AT_ONCE) as workers:
            return dict(zip(ids, workers.map(problem, ids), strict=True))

    def partitions(self, away: frozenset[int]) -> Finding:
        try:
            topics = list(self.ask(routes.LIST_TOPICS)["topics"])
        except NoTopics:
            topics = []
        except MyQueueError as error:
            return skipped(diagnosis.PARTITIONS, f"topics cannot be listed: {error.message}")
        workers = ThreadPoolExecutor(ASKED_AT_ONCE)
        asked = {topic: workers.submit(self._partitions_of, topic) for topic in topics}
        wait(asked.values(), PARTITIONS_S)
        workers.shutdown(wait=False, cancel_futures=True)
        seen: dict[str, list[PartitionInfo]] = {}
        unseen: dict[str, str] = {}
        for topic, future in asked.items():
            if not future.done() or future.cancelled():
                continue
            try:
                seen[topic] = future.result()
            except TopicNotFound:
                topics.remove(topic)  # deleted meanwhile
            except MyQueueError as error:
                unseen[topic] = error.message
        return diagnosis.of_partitions(seen, unseen, away, len(topics))

    def _partitions_of(self, topic: str) -> list[PartitionInfo]:
        answer = self.ask(routes.LIST_PARTITIONS, {"topic": topic})
        return [partition_info(entry) for entry in answer["partitions"]]

    def ask(
        self,
        route: routes.Route,
        path: dict[str, Any] | None = None,
        query: dict[str, Any] | None = None,
        body: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        raw = self._exchange(route, path, query, body)
        found = json_of(raw)
        if 200 <= raw.status < 300 and isinstance(found, dict):
            return found
        raise error_of(raw, found)

    def _exchange(
        self,
        route: routes.Route,
        path: dict[str, Any] | None = None,
        query: dict[str, Any] | None = None,
        body: dict[str, Any] | None = None,
    ) -> RawResponse:
        target = route.path.format(**{name: quote(str(value), safe="") for name, value in (path or {}).items()})
        target += f"?{urlencode(query)}" if query else ""
        data = None if body is None else json.dumps(body).encode()
        headers = {} if body is None else {"Content-Type": "application/json"}
        connection = HttpConnection(self._url)
        try:
            return connection.exchange(
                route.method, target, headers, data, connect_s=self._patience_s / 2, read_s=self._patience_s
            )
        finally:
            connection.close()


def go_round(url: str, patience_s: float) -> RoundTrip:
    """A message to a broker and back, as the library sends and reads them, on a topic that is gone afterwards."""
    topic = f"_doctor.{uuid.uuid4().hex[:12]}"
    value = uuid.uuid4().hex
    retry = RetryPolicy(deadline_s=patience_s)
    done: list[tuple[str, float]] = []
    step, failed, message = "", False, ""

    def timed(what: str, call: Callable[[], T]) -> T:
        nonlocal step
        step, started = what, time.monotonic()
        result = call()
        done.append((what, time.monotonic() - started))
        return result

    with myqueue.Admin(url, retry=retry) as admin:
        # The first batch that is encoded loads what that takes, which is no part of the time that is told.
        from myqueue.protocol import batch

        batch.encode_body([batch.Message(b"")])
        try:
            timed("create a topic", lambda: admin.create_topic(topic, partitions=1))
            timed("elect a leader", lambda: admin.offsets(topic))
            timed("produce", lambda: _produce(url, topic, value, patience_s))
            timed("read", lambda: _read(url, topic, value, patience_s))
        except (MyQueueError, TimeoutError) as error:
            failed, message = True, str(error)
        finally:
            left_behind = _delete(admin, topic)
    return RoundTrip(tuple(done), step if failed else None, message, left_behind)


def _produce(url: str, topic: str, value: str, patience_s: float) -> None:
    with myqueue.Producer(url, topic=topic, delivery_timeout_s=patience_s) as producer:
        producer.send(value).result(timeout=2 * patience_s)


def _read(url: str, topic: str, value: str, patience_s: float) -> None:
    wait_ms = round(patience_s / 2 * 1000)
    answer = Asker(url, patience_s).ask(
        routes.LIST_MESSAGES, {"topic": topic, "partition_id": 0}, {"offset": 0, "wait_ms": wait_ms}
    )
    if [message["value"] for message in answer["messages"]] != [value]:
        raise TimeoutError("the message that was stored is not there")


def _delete(admin: "myqueue.Admin", topic: str) -> str | None:
    """The topic if it may still be there."""
    try:
        admin.delete_topic(topic)
    except TopicNotFound:
        return None
    except MyQueueError:
        return topic
    return None


def _within(seconds: float, call: Callable[[], T]) -> T:
    """Looking up a name knows no limit of its own."""
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except Exception as error:  # noqa: BLE001 - whoever waits gets it
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return answer.result(seconds)


def _why(error: OSError) -> str:
    return (error.strerror or str(error) or type(error).__name__).lower()
