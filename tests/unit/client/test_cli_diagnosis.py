"""What `myqueue doctor` concludes from what it has seen."""

from dataclasses import replace

import pytest

from myqueue.cli import diagnosis, doctor
from myqueue.cli.diagnosis import Connection, Finding, Greeting, RoundTrip
from myqueue.cli.doctor import Probe, connect
from myqueue.descriptions import (
    BrokerInfo,
    ClusterInfo,
    DatabaseInfo,
    ManagerInfo,
    PartitionInfo,
    Readiness,
    WriteManagerInfo,
    WriterInfo,
)
from tests.unit.client.scripted_server import Reply, ScriptedServer, Seen, failure

URL = "http://queue.example"
READY = Readiness(True, {"postgres": "ok", "brokers": "ok", "write_manager": "ok"})
GREETING = Greeting(status=200, ours=True, service="read-manager-1", seconds=0.004, clock_ahead_s=0.1)
PRIMARY, STANDBY, SILENT = (
    DatabaseInfo("primary", "active"),
    DatabaseInfo("standby", "active"),
    DatabaseInfo(None, "inactive"),
)
LOST = DatabaseInfo("standby", "inactive", "standby does not stream from a primary")
ACTIVE, STANDING_BY, GONE = (
    WriteManagerInfo("write-manager-1", "active", 7),
    WriteManagerInfo("write-manager-2", "standby", None),
    WriteManagerInfo(None, "inactive", None),
)
CUT_OFF = replace(ACTIVE, problem="PostgreSQL has not answered for 4 s")
TAKEN_OVER = WriteManagerInfo("write-manager-2", "active", 8)
CLUSTER = ClusterInfo(
    brokers=tuple(BrokerInfo(number, "active", 1, 3, 0) for number in (1, 2, 3)),
    read_managers=(ManagerInfo("read-manager-1", "active", 0), ManagerInfo("read-manager-2", "active", 0)),
    write_manager=WriterInfo("write-manager-1", 7),
    databases=(PRIMARY, STANDBY, STANDBY),
    topics=1,
    partitions=3,
)
ALL_REACHED: dict[int, str | None] = {1: None, 2: None, 3: None}


def a_partition(number: int, leader: int | None = 1) -> PartitionInfo:
    return PartitionInfo(number, leader, (1, 2, 3), 1, 0, 10, 10, 100)


def damaged(*brokers: int, replicas: tuple[int, ...] = (1, 2, 3), leader: int | None = 1) -> PartitionInfo:
    reasons = tuple((broker_id, "entry 7 does not match its checksum") for broker_id in brokers)
    return replace(a_partition(0, leader), replicas=replicas, damaged=reasons)


WELL = [
    diagnosis.of_address(URL, "--url", Connection("queue.example", 80, ("10.0.0.1",))),
    diagnosis.of_balancer(GREETING),
    diagnosis.of_read_managers(GREETING, CLUSTER),
    diagnosis.of_write_manager(None, READY, CLUSTER),
    diagnosis.of_write_manager(None, READY, replace(CLUSTER, write_managers=(ACTIVE, STANDING_BY))),
    diagnosis.of_postgres(READY, CLUSTER),
    diagnosis.of_brokers(CLUSTER, ALL_REACHED, fresh=True),
    diagnosis.of_partitions({"orders": [a_partition(0)]}, {}, frozenset(), 1),
    diagnosis.of_partitions({}, {}, frozenset(), 0),
    diagnosis.of_replicas({"orders": [a_partition(0)]}),
    diagnosis.of_clock(0.9, 0.01),
    diagnosis.of_versions("0.4.0", "0.4.7"),
    diagnosis.of_round_trip(RoundTrip((("produce", 0.01), ("read", 0.002)))),
]

NOT_THERE = Connection("queue.example", 80, problem="unknown host 'queue.example': name or service not known")
NOBODY_LISTENS = Connection("queue.example", 80, ("10.0.0.1",), "connection refused", refused=True)
NO_ROUTE = Connection("queue.example", 80, ("10.0.0.1",), "timed out")
ANOTHER_SERVER = Greeting(status=200, server="Apache", content_type="text/html")
NO_MANAGER = Greeting(status=503, ours=True, message="no healthy manager can take the request")
DEAF = Readiness(False, {**READY.checks, "write_manager": "does not answer heartbeats"})
NO_DATABASE = Readiness(False, {**READY.checks, "postgres": "the metadata database is not available right now"})

# What was seen, how bad it is, what the finding must name, what the advice must name.
ILL = [
    (diagnosis.of_address(URL, "MYQUEUE_URL", NOT_THERE), "failure", "unknown host", "MYQUEUE_URL"),
    (diagnosis.of_address(URL, "--url", NOBODY_LISTENS), "failure", "nothing listens at 10.0.0.1 port 80", "nginx"),
    (diagnosis.of_address(URL, "--url", NO_ROUTE), "failure", "timed out", "firewall"),
    (diagnosis.of_balancer(Greeting(problem="timed out")), "failure", "timed out", "nginx"),
    (diagnosis.of_balancer(Greeting(problem="no TLS connection", no_tls=True)), "failure", "no TLS", "http://"),
    (diagnosis.of_balancer(ANOTHER_SERVER), "failure", "not myqueue (Apache, HTTP 200", "another program"),
    (diagnosis.of_read_managers(NO_MANAGER, None), "failure", "none answers", "read-manager"),
    (
        diagnosis.of_read_managers(
            GREETING,
            replace(CLUSTER, read_managers=(CLUSTER.read_managers[0], ManagerInfo("read-manager-2", "inactive", 0))),
        ),
        "warning",
        "1 of 2 answer; silent: read-manager-2",
        "make start NAME=read-manager-2",
    ),
    (
        diagnosis.of_read_managers(GREETING, replace(CLUSTER, read_managers=CLUSTER.read_managers[:1])),
        "warning",
        "only one",
        "--scale",
    ),
    (
        diagnosis.of_write_manager("no healthy manager can take the request", DEAF, CLUSTER),
        "failure",
        "does not answer",
        "make start NAME=write-manager-1",
    ),
    (diagnosis.of_write_manager(None, DEAF, CLUSTER), "failure", "heartbeats", "MYQUEUE_CLUSTER_SECRET"),
    (diagnosis.of_postgres(NO_DATABASE, None), "failure", "cannot ask any server", "postgres-1"),
    (
        diagnosis.of_postgres(READY, replace(CLUSTER, databases=(STANDBY, STANDBY, SILENT))),
        "failure",
        "the primary does not answer",
        "make start NAME=postgres-1",
    ),
    (
        diagnosis.of_postgres(READY, replace(CLUSTER, databases=(PRIMARY, SILENT, SILENT))),
        "failure",
        "no standby answers",
        "postgres-2",
    ),
    (
        diagnosis.of_postgres(READY, replace(CLUSTER, databases=(PRIMARY, STANDBY, SILENT))),
        "warning",
        "2 of 3 servers answer; 1 standby away",
        "make status",
    ),
    (
        diagnosis.of_postgres(NO_DATABASE, replace(CLUSTER, databases=(LOST, LOST, SILENT))),
        "failure",
        "the primary does not answer",
        "make start NAME=postgres-1",
    ),
    (
        diagnosis.of_postgres(READY, replace(CLUSTER, databases=(replace(PRIMARY, problem="no standby"), LOST))),
        "failure",
        "the primary answers, but no standby",
        "make logs NAME=postgres-2",
    ),
    (
        diagnosis.of_postgres(READY, replace(CLUSTER, databases=(PRIMARY, STANDBY, LOST))),
        "warning",
        "does not stream",
        "docs/operations.md",
    ),
    (
        diagnosis.of_write_manager(None, READY, replace(CLUSTER, write_managers=(CUT_OFF, STANDING_BY))),
        "warning",
        "write-manager-1, epoch 7, but PostgreSQL has not answered for 4 s",
        "MYQUEUE_DATABASE_HOSTS",
    ),
    (
        diagnosis.of_write_manager(
            None,
            READY,
            replace(CLUSTER, write_manager=WriterInfo("write-manager-2", 8), write_managers=(CUT_OFF, TAKEN_OVER)),
        ),
        "warning",
        "write-manager-2, epoch 8; write-manager-1 does not know that another one has taken over",
        "make logs NAME=write-manager-1",
    ),
    (
        diagnosis.of_write_manager(None, READY, replace(CLUSTER, write_managers=(ACTIVE, GONE))),
        "warning",
        "none stands by",
        "make start NAME=write-manager-2",
    ),
    (
        diagnosis.of_brokers(replace(CLUSTER, brokers=()), {}, fresh=True),
        "failure",
        "none has ever registered",
        "SECRET",
    ),
    (
        diagnosis.of_brokers(CLUSTER, ALL_REACHED | {3: "temporarily unavailable"}, fresh=True),
        "warning",
        "2 of 3 answer; away: 3",
        "make start NAME=broker-3",
    ),
    (
        diagnosis.of_brokers(CLUSTER, ALL_REACHED | {2: "gone", 3: "gone"}, fresh=False),
        "failure",
        "1 of 3 answer; away: 2, 3",
        "nothing acknowledged is lost",
    ),
    (
        diagnosis.of_partitions({"orders": [a_partition(0), a_partition(1, None)]}, {}, frozenset(), 1),
        "failure",
        "1 of 2 without leader: orders/1",
        "brokers back",
    ),
    (
        diagnosis.of_partitions({"orders": [a_partition(0)]}, {}, frozenset({3}), 4),
        "warning",
        "1 with a replica away: orders/0; 3 topics not looked at",
        "catch up",
    ),
    (
        diagnosis.of_partitions(
            {"orders": [replace(a_partition(0), voters=(1, 3)), replace(a_partition(1), voters=(3, 1, 2))]},
            {},
            frozenset(),
            1,
        ),
        "warning",
        "all 2 have a leader, 1 with a replica that does not vote yet: orders/0",
        "another broker",
    ),
    (diagnosis.of_partitions({}, {"orders": "timed out"}, frozenset(), 1), "failure", "orders: timed out", "again"),
    (
        diagnosis.of_replicas({"orders": [damaged(2)], "bills": [a_partition(0)]}),
        "warning",
        "1 partition with a replica to be rebuilt: orders/0 (on broker 2: entry 7",
        "nothing to do",
    ),
    (
        diagnosis.of_replicas({"orders": [damaged(2)], "bills": [damaged(1, replicas=(1,), leader=None)]}),
        "failure",
        "without a decision: bills/0 (the only replica); on broker 1: entry 7",
        "delete the topic",
    ),
    (diagnosis.of_replicas({"orders": [damaged(2, 3)]}), "failure", "orders/0 (2 of 3 replicas)", "latest disk"),
    (diagnosis.of_replicas({"orders": [damaged(1, 2, replicas=(1, 2))]}), "failure", "2 of 2", "nothing was deleted"),
    (diagnosis.of_replicas({"orders": [damaged(2, leader=None)]}), "failure", "orders/0 (no leader)", "bring back"),
    (diagnosis.of_clock(-61.0, 0.01), "warning", "61 s behind", "NTP"),
    (diagnosis.of_versions("0.4.0", "0.10.0"), "warning", "cluster 0.10.0", "upgrade the command"),
    (diagnosis.of_versions("0.10.0", "0.4.0"), "warning", "command 0.10.0", "upgrade the cluster"),
    (
        diagnosis.of_round_trip(RoundTrip((("create a topic", 0.1),), "produce", "no leader", "_doctor.x")),
        "failure",
        "produce: no leader (after: create a topic 100 ms)",
        "myqueue topic delete _doctor.x",
    ),
    (diagnosis.of_round_trip(RoundTrip((("read", 0.1),), left_behind="_doctor.x")), "warning", "read", "_doctor.x"),
]


@pytest.mark.parametrize("finding", WELL, ids=lambda finding: finding.tier)
def test_what_is_well_needs_no_advice(finding: Finding) -> None:
    assert (finding.state, finding.advice) == ("ok", None), finding


@pytest.mark.parametrize(("finding", "state", "what", "advice"), ILL)
def test_what_is_ill_is_named_with_what_to_do(finding: Finding, state: str, what: str, advice: str) -> None:
    assert finding.state == state, finding
    assert what in finding.what
    assert finding.advice is not None
    assert advice in finding.advice


def test_old_news_of_brokers_count_for_nothing() -> None:
    """The catalog says active or inactive as of when the write manager went; only what was reached counts then."""
    gone = replace(CLUSTER, brokers=tuple(replace(broker, state="inactive") for broker in CLUSTER.brokers))
    assert diagnosis.of_brokers(gone, ALL_REACHED, fresh=False).state == "ok"
    assert diagnosis.of_brokers(gone, ALL_REACHED, fresh=True).state == "failure"


def test_a_name_that_no_host_can_have_is_told_as_such() -> None:
    found = diagnosis.of_address("http://a..b", "--url", connect("http://a..b", 4.0))
    assert (found.state, found.what) == (
        "failure",
        "http://a..b (from --url): unknown host 'a..b': hosts cannot have such a name",
    )


def test_long_lists_are_cut() -> None:
    assert diagnosis.names([str(number) for number in range(7)]) == "0, 1, 2, 3, 4 and 2 more"


@pytest.mark.parametrize(("leaders", "state"), [((None, 1), "ok"), ((None, None), "failure"), ((None, "gone"), "ok")])
def test_a_partition_in_an_election_is_looked_at_again(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, leaders: tuple[object, ...], state: str
) -> None:
    monkeypatch.setattr(doctor, "ELECTION_S", 0.0)
    looks = iter(leaders)

    def answer(seen: Seen) -> Reply:
        if seen.path == "/topics":
            return Reply(body={"status": "success", "topics": ["orders"]})
        leader = next(looks)
        if leader == "gone":
            return Reply(404, failure(404, 40401, "topic not found"))
        counts = dict.fromkeys(("term", "beginning_offset", "end_offset", "size", "size_bytes"), 0)
        partition = {"partition_id": 0, "leader": leader, "replicas": [1, 2, 3], **counts}
        return Reply(body={"status": "success", "partitions": [partition]})

    server.answer = answer
    found, _ = Probe(server.url, 4.0).partitions(frozenset())
    assert (found.state, list(looks)) == (state, [])
