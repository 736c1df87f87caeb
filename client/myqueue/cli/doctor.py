"""`myqueue doctor`: checks every tier, from outside to inside, through the cluster's one port."""

import shutil
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, suppress
from dataclasses import asdict
from email.utils import parsedate_to_datetime
from typing import Any

import typer

import myqueue
from myqueue import connecting
from myqueue.cli import diagnosis
from myqueue.cli.diagnosis import Connection, Finding, Greeting, RoundTrip, skipped
from myqueue.cli.failures import REFUSED
from myqueue.cli.output import Output, Styled, plural
from myqueue.cli.session import Session, command
from myqueue.connecting import ConnectFailed, SocketAddress, host_and_port
from myqueue.descriptions import ClusterInfo, PartitionInfo, Readiness, cluster_info, partition_info
from myqueue.http_connection import HttpConnection, NoResponse, TlsFailed
from myqueue.protocol import routes
from myqueue.protocol.errors import GrantInvalid, InvalidRequest, MyQueueError, NoTopics, TopicNotFound, from_body
from myqueue.transport import RetryPolicy, Timeouts, Transport, json_of
from myqueue.version import VERSION

REQUEST_S = 4.0  # for one request, unless --timeout is less
PARTITIONS_S = 6.0  # for all topics
ELECTION_S = 3.0
THREADS = 8
MARGIN = 24  # in front of what is found
NO_TOPIC_ID = str(uuid.UUID(int=0))
_STYLES = {"ok": "green", "warning": "yellow", "failure": "bold red", "skipped": "dim"}


def register(app: typer.Typer) -> None:
    command(app, "doctor")(doctor)


def doctor(session: Session) -> None:
    """Look at every tier and say what is wrong and what to do.

    From outside to inside: the address, the load balancer, read managers, the write manager, PostgreSQL, brokers,
    partitions, damaged replicas, clocks, versions, and a message that goes all the way on a topic of its own, which is
    deleted again. All of it goes through the cluster's one port. It ends with 1 if something fails; warnings are no
    failure.
    """
    findings = []
    for finding in examine(session.url, session.settings.url_from, min(REQUEST_S, session.settings.timeout_s)):
        findings.append(finding)
        if not session.output.as_json:
            show(session.output, f"{finding.state:<8} {finding.tier:<14} ", finding.what, _STYLES[finding.state])
            if finding.advice is not None:
                show(session.output, f"{'':<{MARGIN}}-> ", finding.advice, "")
    failed = [finding.tier for finding in findings if finding.state == "failure"]
    warned = [finding.tier for finding in findings if finding.state == "warning"]
    if session.output.as_json:
        state = "failure" if failed else "warning" if warned else "ok"
        session.output.document({"url": session.url, "state": state, "findings": [asdict(each) for each in findings]})
    else:
        session.output.text(summary(failed, warned))
    if failed:
        raise typer.Exit(REFUSED)


def show(output: Output, start: str, text: str, style: str) -> None:
    """Wrapped on a terminal, else one line, for grep."""
    if output.on_terminal:
        width = max(MARGIN + 20, shutil.get_terminal_size().columns)
        later = " " * len(start)
        start, text = "", textwrap.fill(text, width, initial_indent=start, subsequent_indent=later)
    output.text(Styled(start + text, style))


def summary(failed: list[str], warned: list[str]) -> Styled:
    warnings = plural(len(warned), "warning")
    if failed:
        more = f", {warnings}" if warned else ""
        return Styled(f"{plural(len(failed), 'failure')}{more}: begin with the first one ({failed[0]})", "bold red")
    if warned:
        return Styled(f"it works, with {warnings}: {', '.join(warned)}", "yellow")
    return Styled("all is well", "green")


def examine(url: str, url_from: str, request_s: float) -> Iterator[Finding]:
    """One finding of each tier, as soon as it is known."""
    connection = connect(url, request_s)
    yield diagnosis.of_address(url, url_from, connection)
    if connection.problem is not None:
        yield skipped(diagnosis.THE_REST, "nothing answers there")
        return
    probe = Probe(url, request_s)
    greeting = probe.greeting()
    yield diagnosis.of_balancer(greeting)
    if not greeting.ours:
        yield skipped(diagnosis.THE_REST, "it is behind the load balancer")
        return
    ready, cluster = probe.readiness(), probe.cluster()
    yield diagnosis.of_read_managers(greeting, cluster)
    write_problem = probe.write_problem()
    yield diagnosis.of_write_manager(write_problem, ready, cluster)
    if greeting.service is None:
        yield skipped(diagnosis.POSTGRES, "only read managers tell")
        yield skipped(diagnosis.BROKERS, "only read managers tell which there are")
        yield skipped(diagnosis.PARTITIONS, "only read managers tell")
        yield skipped(diagnosis.REPLICAS, "only read managers tell")
    else:
        yield diagnosis.of_postgres(ready, cluster)
        reached = probe.brokers(cluster)
        yield diagnosis.of_brokers(cluster, reached, fresh=write_problem is None)
        yield from probe.partitions(frozenset(broker for broker, problem in reached.items() if problem is not None))
    yield diagnosis.of_clock(greeting.clock_ahead_s, greeting.seconds)
    yield diagnosis.of_versions(VERSION, probe.version())
    if write_problem is None and greeting.service is not None:
        yield diagnosis.of_round_trip(probe.round_trip())
    else:
        yield skipped(diagnosis.ROUND_TRIP, "it needs read managers and the write manager")


def connect(url: str, request_s: float) -> Connection:
    host, port = host_and_port(url)
    try:
        addresses = connecting.resolve(host, port, request_s)
        started = time.monotonic()
        connecting.connect(host, port, request_s / 2).close()
    except ConnectFailed as error:
        return Connection(host, port, _names(error.addresses), str(error), refused=error.reason == "refused")
    return Connection(host, port, _names(addresses), seconds=time.monotonic() - started)


def _names(addresses: Sequence[SocketAddress]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(each.address[0]) for each in addresses))


class Probe:
    """One attempt per request: a request that needs a retry is worth a finding."""

    def __init__(self, url: str, request_s: float) -> None:
        self._url = url
        self._request_s = request_s
        self._transport = Transport(url, timeouts=Timeouts(connect_s=request_s / 2, read_s=request_s))

    def greeting(self) -> Greeting:
        started = time.time()
        with closing(HttpConnection(self._url)) as connection:
            try:
                raw = connection.exchange(
                    "GET", routes.HEALTHZ.path, {}, connect_s=self._request_s / 2, read_s=self._request_s
                )
            except NoResponse as error:
                return Greeting(problem=error.message, no_tls=isinstance(error, TlsFailed))
        seconds = time.time() - started
        found = json_of(raw)
        body = found if isinstance(found, dict) else {}
        ahead_s = None
        with suppress(TypeError, ValueError):
            # The header has whole seconds: on average, half of one has passed since.
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

    def readiness(self) -> Readiness | None:
        with suppress(MyQueueError):
            response = self._transport.probe(routes.READYZ)
            if isinstance(checks := response.body.get("checks"), dict):
                return Readiness(response.status == 200, checks)
        return None

    def cluster(self) -> ClusterInfo | None:
        with suppress(MyQueueError, KeyError):
            return cluster_info(self._call(routes.CLUSTER))
        return None

    def version(self) -> str | None:
        with suppress(MyQueueError, KeyError):
            return str(self._call(routes.OPENAPI)["info"]["version"])
        return None

    def write_problem(self) -> str | None:
        """Creates a topic without a name: a working write manager refuses that, and nothing is written."""
        try:
            self._call(routes.CREATE_TOPIC, body={})
        except InvalidRequest:
            return None
        except MyQueueError as error:
            return error.message
        return "what answers there takes a topic without a name"

    def brokers(self, cluster: ClusterInfo | None) -> dict[int, str | None]:
        """Why each one does not respond. A request without a grant is refused, but by the broker itself."""

        def problem(broker_id: int) -> str | None:
            path = {"broker_id": broker_id, "topic_id": NO_TOPIC_ID, "partition_id": 0}
            try:
                self._call(routes.FETCH_BATCHES, path=path, query={"offset": 0})
            except MyQueueError as error:
                return None if isinstance(error, GrantInvalid) else error.message
            return None

        ids = [broker.broker_id for broker in cluster.brokers] if cluster else []
        with ThreadPoolExecutor(THREADS) as pool:
            return dict(zip(ids, pool.map(problem, ids), strict=True))

    def partitions(self, away: frozenset[int]) -> list[Finding]:
        try:
            topics = list(self._call(routes.LIST_TOPICS)["topics"])
        except NoTopics:
            topics = []
        except MyQueueError as error:
            why = f"topics cannot be listed: {error.message}"
            return [skipped(tier, why) for tier in (diagnosis.PARTITIONS, diagnosis.REPLICAS)]
        seen, unseen = self._partitions_of(topics)
        without_leader = [topic for topic, found in seen.items() if any(each.leader is None for each in found)]
        if without_leader:  # perhaps just made, or in an election
            time.sleep(ELECTION_S)
            before = set(without_leader)
            again, unseen_again = self._partitions_of(without_leader)
            gone = before.difference(without_leader)
            topics = [topic for topic in topics if topic not in gone]
            seen = {topic: found for topic, found in seen.items() if topic not in gone} | again
            unseen |= unseen_again
        return [diagnosis.of_partitions(seen, unseen, away, len(topics)), diagnosis.of_replicas(seen)]

    def _partitions_of(self, topics: list[str]) -> tuple[dict[str, list[PartitionInfo]], dict[str, str]]:
        """By topic, and why those of others are not known. Takes those that were deleted meanwhile out of `topics`."""
        pool = ThreadPoolExecutor(THREADS)
        futures = {pool.submit(self._call, routes.LIST_PARTITIONS, path={"topic": topic}): topic for topic in topics}
        done = wait(futures, PARTITIONS_S).done
        pool.shutdown(wait=False, cancel_futures=True)
        seen: dict[str, list[PartitionInfo]] = {}
        unseen: dict[str, str] = {}
        for future, topic in futures.items():
            if future in done:
                try:
                    seen[topic] = [partition_info(entry) for entry in future.result()["partitions"]]
                except TopicNotFound:
                    topics.remove(topic)
                except MyQueueError as error:
                    unseen[topic] = error.message
        return seen, unseen

    def round_trip(self) -> RoundTrip:
        """Sends a message to a broker and reads it back, with the library, on a topic that is deleted again."""
        from myqueue.protocol import batch

        topic, value = f"_doctor.{uuid.uuid4().hex[:12]}", uuid.uuid4().hex
        batch.encode_body([batch.Message(b"")])  # loads pyarrow, outside of the times
        with myqueue.Admin(self._url, retry=RetryPolicy(deadline_s=self._request_s)) as admin:
            steps: dict[str, Callable[[], object]] = {
                "create a topic": lambda: admin.create_topic(topic, partitions=1),
                "elect a leader": lambda: admin.offsets(topic),
                "produce": lambda: self._produce(topic, value),
                "read": lambda: self._read(topic, value),
            }
            done: list[tuple[str, float]] = []
            failed_at, message, left_behind = None, "", None
            step = ""
            try:
                for step, act in steps.items():
                    started = time.monotonic()
                    act()
                    done.append((step, time.monotonic() - started))
            except (MyQueueError, TimeoutError) as error:
                failed_at, message = step, str(error)
            finally:
                try:
                    admin.delete_topic(topic)
                except MyQueueError as error:
                    left_behind = None if isinstance(error, TopicNotFound) else topic
        return RoundTrip(tuple(done), failed_at, message, left_behind)

    def _produce(self, topic: str, value: str) -> None:
        with myqueue.Producer(self._url, topic=topic, delivery_timeout_s=self._request_s) as producer:
            producer.send(value).result(timeout=2 * self._request_s)

    def _read(self, topic: str, value: str) -> None:
        query = {"offset": 0, "wait_ms": round(self._request_s / 2 * 1000)}
        answer = self._call(routes.LIST_MESSAGES, path={"topic": topic, "partition_id": 0}, query=query)
        if [message["value"] for message in answer["messages"]] != [value]:
            raise TimeoutError("the message that was stored is not there")

    def _call(self, route: routes.Route, **given: Any) -> dict[str, Any]:
        response = self._transport.probe(route, **given)
        if 200 <= response.status < 300:
            return response.body
        raise from_body(response.body, response.status)
