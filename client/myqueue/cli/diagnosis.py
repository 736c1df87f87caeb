"""What is wrong with a cluster and what to do, concluded from what was seen of it. No call is made here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from myqueue.cli.output import plural
from myqueue.descriptions import ClusterInfo, PartitionInfo, Readiness

State = Literal["ok", "warning", "failure", "skipped"]

ADDRESS, BALANCER, READ_MANAGERS, WRITE_MANAGER = "address", "load balancer", "read managers", "write manager"
POSTGRES, BROKERS, PARTITIONS, CLOCK = "PostgreSQL", "brokers", "partitions", "clock"
VERSIONS, ROUND_TRIP = "versions", "round trip"
THE_REST = "the rest"

CLOCK_TOLERANCE_S = 2.0  # the header that tells the time has whole seconds
MANY = 5  # names that a line lists before it only counts


@dataclass(frozen=True, slots=True)
class Finding:
    tier: str
    state: State
    what: str
    advice: str | None = None


def skipped(tier: str, why: str) -> Finding:
    return Finding(tier, "skipped", f"not looked at: {why}")


def revive(name: str, service: str) -> str:
    """How to bring a process back, on one machine and in containers, and where it tells why it went."""
    return (
        f"bring it back with 'make start NAME={name}' or 'docker compose up -d {service}'; "
        f"'make logs NAME={name}' or 'docker compose logs {service}' tells why it went"
    )


def names(found: Sequence[str]) -> str:
    shown = ", ".join(found[:MANY])
    return shown if len(found) <= MANY else f"{shown} and {len(found) - MANY} more"


# ---- from outside to inside, one tier after the other ----


@dataclass(frozen=True, slots=True)
class Connection:
    host: str
    port: int
    addresses: tuple[str, ...] = ()  # none: the name means nothing
    problem: str | None = None  # why there is no connection
    refused: bool = False  # somebody is there, but nobody listens
    seconds: float = 0.0


def of_address(url: str, url_from: str, seen: Connection) -> Finding:
    said = f"{url} (from {url_from})"
    choose = "--url, MYQUEUE_URL or --profile say which cluster is meant"
    if not seen.addresses:
        return Finding(ADDRESS, "failure", f"{said}: no such host: {seen.problem}", f"check the spelling; {choose}")
    where = f"{seen.addresses[0]} port {seen.port}"
    if seen.refused:
        return Finding(
            ADDRESS,
            "failure",
            f"{said}: nothing listens at {where}",
            f"if the port is right ({choose}), it is the load balancer: {revive('nginx', 'nginx')}",
        )
    if seen.problem is not None:
        return Finding(
            ADDRESS,
            "failure",
            f"{said}: no connection to {where}: {seen.problem}",
            f"is the machine up, and does a firewall let port {seen.port} through? {choose}",
        )
    return Finding(ADDRESS, "ok", f"{said}: {where} answers in {_ms(seen.seconds)}")


@dataclass(frozen=True, slots=True)
class Greeting:
    """The first answer over HTTP, to GET /healthz."""

    status: int = 0
    server: str = ""
    content_type: str = ""
    ours: bool = False  # it is JSON as this cluster writes it
    service: str | None = None  # the read manager that answered
    message: str = ""  # of a failure
    problem: str | None = None  # why there is no answer
    no_tls: bool = False  # it is that https is not spoken there, or not trusted
    seconds: float = 0.0
    clock_ahead_s: float | None = None  # of this machine's clock over the server's


def of_balancer(seen: Greeting) -> Finding:
    if seen.no_tls:
        return Finding(
            BALANCER,
            "failure",
            str(seen.problem),
            "myqueue itself speaks http: give an http:// address, or one of a proxy whose certificate is trusted here",
        )
    if seen.problem is not None:
        return Finding(
            BALANCER,
            "failure",
            f"takes the connection, but does not answer: {seen.problem}",
            "another program listens there (correct --url, MYQUEUE_URL or the profile), or nginx hangs: see "
            "'make logs NAME=nginx' or 'docker compose logs nginx'",
        )
    if not seen.ours:
        who = f"{seen.server or 'a server without name'}, HTTP {seen.status}, {seen.content_type or 'no content type'}"
        return Finding(
            BALANCER,
            "failure",
            f"what answers is not myqueue ({who})",
            "another program has this port: correct --url, MYQUEUE_URL or the profile; "
            "on one machine 'make status' tells myqueue's own port",
        )
    return Finding(BALANCER, "ok", f"answers in {_ms(seen.seconds)}")


def of_read_managers(greeting: Greeting, cluster: ClusterInfo | None) -> Finding:
    if greeting.service is None:
        return Finding(
            READ_MANAGERS,
            "failure",
            f"none answers: {greeting.message}",
            revive("read-manager-1", "read-manager"),
        )
    if cluster is None or not cluster.read_managers:
        return Finding(READ_MANAGERS, "ok", f"{greeting.service} answers; how many there are is not known")
    active = [manager.name for manager in cluster.read_managers if manager.state == "active"]
    gone = [manager.name for manager in cluster.read_managers if manager.state != "active"]
    if gone:
        return Finding(
            READ_MANAGERS,
            "warning",
            f"{len(active)} of {len(cluster.read_managers)} answer; silent: {names(gone)}",
            "the others take its requests; one that was scaled away is forgotten within a minute, else "
            f"{revive(gone[0], 'read-manager')}",
        )
    if len(active) == 1:
        return Finding(
            READ_MANAGERS,
            "warning",
            f"only one: {active[0]}",
            "nobody takes its requests when it goes; containers: docker compose up -d --scale read-manager=2",
        )
    return Finding(READ_MANAGERS, "ok", f"{plural(len(active), 'read manager')}: {names(active)}")


@dataclass(frozen=True, slots=True)
class WriteProbe:
    """What came back for a write that breaks the rules: a refusal is what a write manager that works says."""

    answered: bool
    message: str = ""


def of_write_manager(probe: WriteProbe, ready: Readiness | None, cluster: ClusterInfo | None) -> Finding:
    if not probe.answered:
        return Finding(
            WRITE_MANAGER,
            "failure",
            f"does not answer: {probe.message}",
            "until it is back there are no new topics, no commits and no writes but those of producers that are open; "
            f"reading by offset goes on; {revive('write-manager-1', 'write-manager')}",
        )
    heard = (ready.checks if ready else {}).get("write_manager", "ok")
    if heard != "ok":
        return Finding(
            WRITE_MANAGER,
            "failure",
            f"takes requests, but {heard} of read managers",
            "its internal port must be reachable from the read managers (MYQUEUE_WRITE_MANAGER_URL), with the same "
            "MYQUEUE_CLUSTER_SECRET",
        )
    writer = cluster.write_manager if cluster else None
    known = f": {writer.name}, epoch {writer.epoch}" if writer else ""
    return Finding(WRITE_MANAGER, "ok", f"answers{known}")


def of_postgres(ready: Readiness | None, cluster: ClusterInfo | None) -> Finding:
    said = (ready.checks if ready else {}).get("postgres", "ok")
    if said != "ok":
        return Finding(
            POSTGRES,
            "failure",
            f"read managers cannot ask any server: {said}",
            f"messages of topics in use still flow; {revive('postgres-1', 'postgres-1 postgres-2 postgres-3')}",
        )
    servers = cluster.databases if cluster else ()
    primaries = [server for server in servers if server.role == "primary"]
    standbys = [server for server in servers if server.role == "standby"]
    silent = len(servers) - len(primaries) - len(standbys)
    if servers and not primaries:
        return Finding(
            POSTGRES,
            "failure",
            "the primary does not answer: topics, registrations and cursors cannot be stored",
            f"{revive('postgres-1', 'postgres-1')}; if its data is lost, docs/operations.md says how to go on",
        )
    if servers and len(servers) > 1 and not standbys:
        return Finding(
            POSTGRES,
            "failure",
            "no standby answers: the primary confirms nothing without one",
            revive("postgres-2", "postgres-2"),
        )
    if silent:
        return Finding(
            POSTGRES,
            "warning",
            f"{len(servers) - silent} of {len(servers)} servers answer; {plural(silent, 'standby', 'standbys')} away",
            "writes go on with the standby that is left; 'make status' or 'docker compose ps' tells which one is away; "
            f"{revive('postgres-3', 'postgres-3')}",
        )
    if not servers:
        return Finding(POSTGRES, "ok", "read managers can ask it")
    return Finding(POSTGRES, "ok", f"the primary and {plural(len(standbys), 'standby', 'standbys')}")


def of_brokers(cluster: ClusterInfo | None, reached: Mapping[int, str | None], *, fresh: bool) -> Finding:
    """`reached`: what kept each broker from answering through the load balancer, None if nothing did.

    What the catalog says of them is only `fresh` while the write manager listens to their heartbeats.
    """
    if cluster is None:
        return Finding(BROKERS, "skipped", "not known: read managers cannot ask PostgreSQL who they are")
    if not cluster.brokers:
        return Finding(
            BROKERS,
            "failure",
            "none has ever registered",
            "they need the write manager's internal address (MYQUEUE_WRITE_MANAGER_URL) and the same "
            f"MYQUEUE_CLUSTER_SECRET; {revive('broker-1', 'broker-1')}",
        )
    away = [
        broker.broker_id
        for broker in cluster.brokers
        if reached.get(broker.broker_id) is not None or (fresh and broker.state != "active")
    ]
    total = len(cluster.brokers)
    if not away:
        return Finding(BROKERS, "ok", f"all {total} answer, {plural(cluster.partitions, 'partition')}")
    who = ", ".join(str(broker_id) for broker_id in away)
    back = revive(f"broker-{away[0]}", f"broker-{away[0]}")
    what = f"{total - len(away)} of {total} answer; away: {who}"
    if len(away) * 2 >= total:
        return Finding(
            BROKERS,
            "failure",
            what,
            "partitions with most of their replicas there take nothing until one is back; nothing acknowledged "
            f"is lost; {back}",
        )
    return Finding(
        BROKERS,
        "warning",
        what,
        f"partitions go on with the replicas that are left, but not if another one goes; {back}",
    )


def of_partitions(
    topics: Mapping[str, Sequence[PartitionInfo]], unseen: Mapping[str, str], away: frozenset[int], count: int
) -> Finding:
    """`unseen`: topics of which nothing was told, and why; `away`: brokers that do not answer; `count`: of topics."""
    leaderless = [
        f"{name}/{partition.partition}"
        for name, found in topics.items()
        for partition in found
        if partition.leader is None
    ]
    thin = [
        f"{name}/{partition.partition}"
        for name, found in topics.items()
        for partition in found
        if away & set(partition.replicas)
    ]
    looked = sum(len(found) for found in topics.values())
    rest = count - len(topics) - len(unseen)
    more = f"; {plural(rest, 'topic')} not looked at for lack of time" if rest > 0 else ""
    if leaderless:
        return Finding(
            PARTITIONS,
            "failure",
            f"{len(leaderless)} of {looked} without leader: {names(leaderless)}{more}",
            "they take no messages until most of their replicas are back: bring their brokers back "
            "('myqueue topic describe NAME' names them); a new leader takes about two seconds",
        )
    if unseen:
        topic, why = next(iter(unseen.items()))
        return Finding(
            PARTITIONS,
            "failure",
            f"nothing is told of {plural(len(unseen), 'topic')}: {topic}: {why}{more}",
            "look at the tiers above first, then run 'myqueue doctor' again",
        )
    if not count:
        return Finding(PARTITIONS, "ok", "there are no topics yet ('myqueue topic create NAME' makes one)")
    if thin:
        return Finding(
            PARTITIONS,
            "warning",
            f"all {looked} have a leader, {len(thin)} with a replica away: {names(thin)}{more}",
            "they catch up by themselves when the broker is back",
        )
    return Finding(PARTITIONS, "ok", f"all {looked} of {plural(len(topics), 'topic')} have a leader{more}")


def of_clock(ahead_s: float | None, seconds: float) -> Finding:
    if ahead_s is None:
        return Finding(CLOCK, "skipped", "not known: the answer does not tell the time")
    if abs(ahead_s) <= CLOCK_TOLERANCE_S + seconds:
        return Finding(CLOCK, "ok", "this machine and the cluster agree")
    which = "ahead of" if ahead_s > 0 else "behind"
    return Finding(
        CLOCK,
        "warning",
        f"this machine is {abs(ahead_s):.0f} s {which} the cluster",
        "timestamps of messages are the sender's: set both clocks by NTP",
    )


def of_versions(here: str, there: str | None) -> Finding:
    if there is None:
        return Finding(VERSIONS, "skipped", f"this command is {here}; the cluster does not tell its own")
    if here.split(".")[:2] == there.split(".")[:2]:
        return Finding(VERSIONS, "ok", f"command {here}, cluster {there}")
    older = "the command" if _number(here) < _number(there) else "the cluster"
    return Finding(VERSIONS, "warning", f"command {here}, cluster {there}", f"upgrade {older}")


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """A message on a topic of its own: how far it came, and the times it took."""

    done: tuple[tuple[str, float], ...] = ()  # what was done, in how many seconds
    failed_at: str | None = None
    message: str = ""
    left_behind: str | None = None  # the topic that could not be deleted


def of_round_trip(seen: RoundTrip) -> Finding:
    done = ", ".join(f"{what} {_ms(seconds)}" for what, seconds in seen.done)
    delete = f"; delete the topic later: myqueue topic delete {seen.left_behind}" if seen.left_behind else ""
    if seen.failed_at is not None:
        before = f" (after: {done})" if done else ""
        return Finding(
            ROUND_TRIP,
            "failure",
            f"{seen.failed_at}: {seen.message}{before}",
            f"what failed above is why; if all is well there, run 'myqueue doctor' again{delete}",
        )
    if seen.left_behind:
        return Finding(ROUND_TRIP, "warning", done, f"its topic could not be deleted{delete}")
    return Finding(ROUND_TRIP, "ok", done)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())
