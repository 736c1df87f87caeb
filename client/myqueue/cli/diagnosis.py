"""What is wrong with a cluster and what to do, from what `doctor` has seen of it. No IO."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from myqueue.cli.output import plural
from myqueue.connecting import foreign_server
from myqueue.descriptions import ClusterInfo, PartitionInfo, Readiness

ADDRESS, BALANCER, READ_MANAGERS, WRITE_MANAGER = "address", "load balancer", "read managers", "write manager"
POSTGRES, BROKERS, PARTITIONS, CLOCK = "PostgreSQL", "brokers", "partitions", "clock"
REPLICAS = "replicas"
VERSIONS, ROUND_TRIP = "versions", "round trip"
THE_REST = "the rest"

DOES_NOT_ANSWER = "does not answer"  # the problem of a server that is away
CLOCK_TOLERANCE_S = 2.0  # the Date header has whole seconds
MAX_NAMES = 5  # in one line

_CHOOSE_URL = "--url, MYQUEUE_URL or --profile say which cluster is meant"
_CHANGE_URL = "correct --url, MYQUEUE_URL or the profile"


@dataclass(frozen=True, slots=True)
class Finding:
    tier: str
    state: Literal["ok", "warning", "failure", "skipped"]
    what: str
    advice: str | None = None


def skipped(tier: str, why: str) -> Finding:
    return Finding(tier, "skipped", f"not looked at: {why}")


def revive(name: str, service: str | None = None) -> str:
    """How to start a process again, on one machine and in containers, and where its logs are."""
    service = service or name
    return (
        f"bring it back with 'make start NAME={name}' or 'docker compose up -d {service}'; "
        f"'make logs NAME={name}' or 'docker compose logs {service}' tells why it went"
    )


def names(found: Sequence[str]) -> str:
    more = f" and {len(found) - MAX_NAMES} more" if len(found) > MAX_NAMES else ""
    return ", ".join(found[:MAX_NAMES]) + more


@dataclass(frozen=True, slots=True)
class Connection:
    host: str
    port: int
    addresses: tuple[str, ...] = ()  # empty: the host name was not resolved
    problem: str | None = None
    refused: bool = False
    seconds: float = 0.0


def of_address(url: str, url_from: str, seen: Connection) -> Finding:
    label = f"{url} (from {url_from})"
    if not seen.addresses:
        what, advice = str(seen.problem), f"check the spelling; {_CHOOSE_URL}"
        return Finding(ADDRESS, "failure", f"{label}: {what}", advice)
    where = f"{seen.addresses[0]} port {seen.port}"
    if seen.refused:
        advice = f"if the port is right ({_CHOOSE_URL}), it is the load balancer: {revive('nginx')}"
        return Finding(ADDRESS, "failure", f"{label}: nothing listens at {where}", advice)
    if seen.problem is not None:
        advice = f"is the machine up, and does a firewall let port {seen.port} through? {_CHOOSE_URL}"
        return Finding(ADDRESS, "failure", f"{label}: no connection to {where}: {seen.problem}", advice)
    return Finding(ADDRESS, "ok", f"{label}: {where} answers in {_ms(seen.seconds)}")


@dataclass(frozen=True, slots=True)
class Greeting:
    """The first HTTP response, to GET /healthz."""

    status: int = 0
    server: str = ""
    content_type: str = ""
    ours: bool = False  # JSON as myqueue writes it
    service: str | None = None  # the read manager that responded
    message: str = ""  # of a failure
    problem: str | None = None  # why there is no response
    no_tls: bool = False
    seconds: float = 0.0
    clock_ahead_s: float | None = None  # of this machine's clock over the server's


def of_balancer(seen: Greeting) -> Finding:
    if seen.no_tls:
        advice = (
            "myqueue itself speaks http: give an http:// address, or one of a proxy whose certificate is trusted here"
        )
        return Finding(BALANCER, "failure", str(seen.problem), advice)
    if seen.problem is not None:
        what = f"takes the connection, but does not answer: {seen.problem}"
        advice = f"another program listens there ({_CHANGE_URL}), or nginx hangs: see 'make logs NAME=nginx' or "
        return Finding(BALANCER, "failure", what, f"{advice}'docker compose logs nginx'")
    if not seen.ours:
        advice = f"another program has this port: {_CHANGE_URL}; on one machine 'make status' tells myqueue's own port"
        return Finding(BALANCER, "failure", foreign_server(seen.status, seen.server, seen.content_type), advice)
    return Finding(BALANCER, "ok", f"answers in {_ms(seen.seconds)}")


def of_read_managers(greeting: Greeting, cluster: ClusterInfo | None) -> Finding:
    if greeting.service is None:
        advice = revive("read-manager-1", "read-manager")
        return Finding(READ_MANAGERS, "failure", f"none answers: {greeting.message}", advice)
    if cluster is None or not cluster.read_managers:
        return Finding(READ_MANAGERS, "ok", f"{greeting.service} answers; how many there are is not known")
    active = [manager.name for manager in cluster.read_managers if manager.state == "active"]
    gone = [manager.name for manager in cluster.read_managers if manager.state != "active"]
    if gone:
        what = f"{len(active)} of {len(cluster.read_managers)} answer; silent: {names(gone)}"
        advice = "the others take its requests; one that was scaled away is forgotten within a minute, else "
        return Finding(READ_MANAGERS, "warning", what, advice + revive(gone[0], "read-manager"))
    if len(active) == 1:
        advice = "nothing takes its requests when it fails; containers: docker compose up -d --scale read-manager=2"
        return Finding(READ_MANAGERS, "warning", f"only one: {active[0]}", advice)
    return Finding(READ_MANAGERS, "ok", f"{plural(len(active), 'read manager')}: {names(active)}")


def of_write_manager(problem: str | None, ready: Readiness | None, cluster: ClusterInfo | None) -> Finding:
    """`problem`: why a write that breaks the rules was not refused, as a working write manager does."""
    if problem is not None:
        advice = (
            "until it is back there are no new topics, no commits and no writes but those of producers that are open; "
            f"reading by offset goes on; {revive('write-manager-1', 'write-manager-1 write-manager-2')}"
        )
        return Finding(WRITE_MANAGER, "failure", f"does not answer: {problem}", advice)
    check = (ready.checks if ready else {}).get("write_manager", "ok")
    if check != "ok":
        advice = (
            "the internal ports of the write managers must be reachable from the read managers "
            "(MYQUEUE_WRITE_MANAGER_URLS), with the same MYQUEUE_CLUSTER_SECRET"
        )
        return Finding(WRITE_MANAGER, "failure", f"takes requests, but {check} of read managers", advice)
    writer = cluster.write_manager if cluster else None
    what = "answers" + (f": {writer.name}, epoch {writer.epoch}" if writer else "")
    listed = cluster.write_managers if cluster else ()
    active = sorted((each for each in listed if each.state == "active"), key=lambda each: -(each.epoch or 0))
    if len(active) > 1:
        name = active[1].name or "write-manager-1"
        advice = (
            f"{name} is not asked any more; it cannot reach PostgreSQL (MYQUEUE_DATABASE_HOSTS, the network): see "
            f"'make logs NAME={name}' or 'docker compose logs {name}'; until it can, none stands by"
        )
        return Finding(
            WRITE_MANAGER, "warning", f"{what}; {name} does not know that another one has taken over", advice
        )
    if active and active[0].problem is not None:
        advice = (
            "produce and fetch of topics in use go on, what has to be stored is refused; "
            "see PostgreSQL, and whether the write manager reaches it (MYQUEUE_DATABASE_HOSTS, the network)"
        )
        return Finding(WRITE_MANAGER, "warning", f"{what}, but {active[0].problem}", advice)
    others = [each for each in listed if each.state != "active"]
    standbys = [each.name or "another one" for each in others if each.state == "standby"]
    if others and not standbys:
        advice = "if this one fails, writes are refused until it is back; "
        return Finding(WRITE_MANAGER, "warning", f"{what}; none stands by", advice + revive("write-manager-2"))
    return Finding(WRITE_MANAGER, "ok", what + (f"; standby: {names(standbys)}" if standbys else ""))


def of_postgres(ready: Readiness | None, cluster: ClusterInfo | None) -> Finding:
    servers = cluster.databases if cluster else ()
    roles = [server.role for server in servers]
    check = (ready.checks if ready else {}).get("postgres", "ok")
    if check != "ok" and "standby" not in roles:
        advice = f"messages of topics in use still flow; {revive('postgres-1', 'postgres-1 postgres-2 postgres-3')}"
        return Finding(POSTGRES, "failure", f"read managers cannot ask any server: {check}", advice)
    if not roles:
        return Finding(POSTGRES, "ok", "read managers can ask it")
    total, standbys = len(roles), roles.count("standby")
    away = total - standbys - roles.count("primary")
    if "primary" not in roles:
        what = "the primary does not answer: topics, registrations and cursors cannot be stored"
        advice = f"'make status' says what it waits for; {revive('postgres-1')}; docs/operations.md says how to go on"
        return Finding(POSTGRES, "failure", what, advice)
    if total > 1 and not standbys:
        what = "no standby answers: the primary confirms nothing without one"
        return Finding(POSTGRES, "failure", what, revive("postgres-2"))
    if unconfirmed := [server.problem for server in servers if server.role == "primary" and server.problem]:
        advice = "a standby has to stream from it: see its log ('make logs NAME=postgres-2')"
        return Finding(POSTGRES, "failure", f"the primary answers, but {unconfirmed[0]}", advice)
    if problems := [server.problem for server in servers if server.problem and server.problem != DOES_NOT_ANSWER]:
        advice = (
            "managers do not read there; writes go on while another standby streams; it is to be pointed at the "
            "current primary, or made anew from it (docs/operations.md)"
        )
        return Finding(POSTGRES, "warning", f"a server is of no use: {problems[0]}", advice)
    if away:
        what = f"{total - away} of {total} servers answer; {plural(away, 'standby', 'standbys')} away"
        advice = (
            "writes go on with the standby that is left; 'make status' or 'docker compose ps' tells which one is away; "
        )
        return Finding(POSTGRES, "warning", what, advice + revive("postgres-3"))
    return Finding(POSTGRES, "ok", f"the primary and {plural(standbys, 'standby', 'standbys')}")


def of_brokers(cluster: ClusterInfo | None, reached: Mapping[int, str | None], *, fresh: bool) -> Finding:
    """`reached`: why each broker did not respond through the load balancer, None if it did.

    Their states in the catalog are `fresh` only while the write manager receives heartbeats.
    """
    if cluster is None:
        return Finding(BROKERS, "skipped", "not known: read managers cannot read the list from PostgreSQL")
    if not cluster.brokers:
        advice = (
            "they need the write managers' internal addresses (MYQUEUE_WRITE_MANAGER_URLS) and the same "
            f"MYQUEUE_CLUSTER_SECRET; {revive('broker-1')}"
        )
        return Finding(BROKERS, "failure", "none has ever registered", advice)
    away = [
        broker.broker_id
        for broker in cluster.brokers
        if reached.get(broker.broker_id) is not None or (fresh and broker.state != "active")
    ]
    total = len(cluster.brokers)
    if not away:
        return Finding(BROKERS, "ok", f"all {total} answer, {plural(cluster.partitions, 'partition')}")
    what = f"{total - len(away)} of {total} answer; away: {', '.join(map(str, away))}"
    back = revive(f"broker-{away[0]}")
    if len(away) * 2 >= total:
        advice = "partitions with most of their replicas there take nothing until one is back; nothing acknowledged"
        return Finding(BROKERS, "failure", what, f"{advice} is lost; {back}")
    advice = "partitions go on with the replicas that are left, but not if another one goes; "
    return Finding(BROKERS, "warning", what, advice + back)


def of_partitions(
    topics: Mapping[str, Sequence[PartitionInfo]], unseen: Mapping[str, str], away: frozenset[int], count: int
) -> Finding:
    """`unseen`: topics that could not be read, and why; `away`: brokers that do not respond; `count`: of topics."""
    found = [(f"{topic}/{each.partition}", each) for topic, partitions in topics.items() for each in partitions]
    leaderless = [name for name, partition in found if partition.leader is None]
    under_replicated = [name for name, partition in found if away & set(partition.replicas)]
    filling = [name for name, each in found if each.voters is not None and set(each.replicas) - set(each.voters)]
    rest = count - len(topics) - len(unseen)
    more = f"; {plural(rest, 'topic')} not looked at for lack of time" if rest > 0 else ""
    if leaderless:
        what = f"{len(leaderless)} of {len(found)} without leader: {names(leaderless)}{more}"
        advice = (
            "they take no messages until most of their replicas are back: bring their brokers back "
            "('myqueue topic describe NAME' names them); a new leader takes about two seconds"
        )
        return Finding(PARTITIONS, "failure", what, advice)
    if unseen:
        topic, why = next(iter(unseen.items()))
        what = f"no answer about {plural(len(unseen), 'topic')}: {topic}: {why}{more}"
        return Finding(PARTITIONS, "failure", what, "look at the tiers above first, then run 'myqueue doctor' again")
    if not count:
        return Finding(PARTITIONS, "ok", "there are no topics yet ('myqueue topic create NAME' makes one)")
    if under_replicated:
        which = f"{len(under_replicated)} with a replica away: {names(under_replicated)}"
        what = f"all {len(found)} have a leader, {which}{more}"
        return Finding(PARTITIONS, "warning", what, "they catch up by themselves when the broker is back")
    if filling:
        which = f"{len(filling)} with a replica that does not vote yet: {names(filling)}"
        advice = (
            "wait: it is filled from the others and counts for no majority until it has caught up; do not stop, empty "
            "or upgrade another broker before"
        )
        return Finding(PARTITIONS, "warning", f"all {len(found)} have a leader, {which}{more}", advice)
    return Finding(PARTITIONS, "ok", f"all {len(found)} of {plural(len(topics), 'topic')} have a leader{more}")


def of_replicas(topics: Mapping[str, Sequence[PartitionInfo]]) -> Finding:
    """A damaged replica is rebuilt from the others by itself; where they are too few, what to give up is a decision."""
    found = [(f"{topic}/{each.partition}", each) for topic, partitions in topics.items() for each in partitions]
    damaged = [(name, partition) for name, partition in found if partition.damaged]
    if not damaged:
        return Finding(REPLICAS, "ok", "none is reported as damaged")
    stuck = [(name, problem) for name, partition in damaged if (problem := _too_damaged(partition))]
    first = damaged[0] if not stuck else next(each for each in damaged if each[0] == stuck[0][0])
    broker_id, reason = first[1].damaged[0]
    example = f"on broker {broker_id}: {reason}"
    if not stuck:
        what = f"{plural(len(damaged), 'partition')} with a replica to be rebuilt: "
        what += f"{names([name for name, _ in damaged])} ({example})"
        advice = (
            "nothing to do: each is removed from its group and copied from the other replicas, one after the other; "
            f"look at the disk of broker {broker_id}, and if it goes on, replace it (docs/operations.md)"
        )
        return Finding(REPLICAS, "warning", what, advice)
    what = f"{plural(len(stuck), 'partition')} not to be rebuilt without a decision: "
    what += f"{names([f'{name} ({problem})' for name, problem in stuck])}; {example}"
    advice = (
        "nothing was deleted, and what is sound can still be read by offset "
        "(GET /topics/NAME/partitions/N/messages?offset=0). Choose: bring back brokers that are away; or put the own, "
        "latest disk of that broker back, not an older copy; or, after brokers were restored from a backup, restore "
        "all of them and PostgreSQL from the same moment; or read out what is sound, delete the topic and send it "
        "again (docs/operations.md, Damaged and restored disks)"
    )
    return Finding(REPLICAS, "failure", what, advice)


def _too_damaged(partition: PartitionInfo) -> str | None:
    """Why it is not rebuilt by itself."""
    if len(partition.replicas) == 1:
        return "the only replica"
    if 2 * len(partition.damaged) > len(partition.replicas):
        return f"{len(partition.damaged)} of {len(partition.replicas)} replicas"
    return "no leader" if partition.leader is None else None


def of_clock(ahead_s: float | None, seconds: float) -> Finding:
    if ahead_s is None:
        return Finding(CLOCK, "skipped", "not known: the answer does not tell the time")
    if abs(ahead_s) <= CLOCK_TOLERANCE_S + seconds:
        return Finding(CLOCK, "ok", "this machine and the cluster agree")
    what = f"this machine is {abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} the cluster"
    return Finding(CLOCK, "warning", what, "timestamps of messages are the sender's: set both clocks by NTP")


def of_versions(here: str, there: str | None) -> Finding:
    if there is None:
        return Finding(VERSIONS, "skipped", f"this command is {here}; the cluster does not tell its own")
    own, theirs = (tuple(int(part) for part in each.split(".") if part.isdecimal()) for each in (here, there))
    what = f"command {here}, cluster {there}"
    if here.split(".")[:2] == there.split(".")[:2]:
        return Finding(VERSIONS, "ok", what)
    return Finding(VERSIONS, "warning", what, f"upgrade {'the command' if own < theirs else 'the cluster'}")


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """A message on a topic of its own: the steps that worked with their seconds, and the one that failed."""

    done: tuple[tuple[str, float], ...] = ()
    failed_at: str | None = None
    message: str = ""
    left_behind: str | None = None  # the topic that could not be deleted


def of_round_trip(seen: RoundTrip) -> Finding:
    done = ", ".join(f"{what} {_ms(seconds)}" for what, seconds in seen.done)
    delete = f"; delete the topic later: myqueue topic delete {seen.left_behind}" if seen.left_behind else ""
    if seen.failed_at is not None:
        what = f"{seen.failed_at}: {seen.message}" + (f" (after: {done})" if done else "")
        advice = f"what failed above is why; if all is well there, run 'myqueue doctor' again{delete}"
        return Finding(ROUND_TRIP, "failure", what, advice)
    if seen.left_behind:
        return Finding(ROUND_TRIP, "warning", done, f"its topic could not be deleted{delete}")
    return Finding(ROUND_TRIP, "ok", done)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"
