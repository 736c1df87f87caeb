"""Calls between the processes of a cluster, on their internal listeners, with the cluster secret.

Paths that start with /internal/ never go through the load balancer. Bodies are JSON but for batches.
"""

import struct
from dataclasses import dataclass
from typing import Literal, NotRequired

from typing_extensions import TypedDict  # pydantic validates these; before 3.12 it needs this one


@dataclass(frozen=True, slots=True)
class InternalRoute:
    """Only answered with the cluster secret."""

    name: str
    method: str
    path: str  # {parameter} in braces

    def path_for(self, **values: object) -> str:
        return self.path.format(**values)


# Write manager: a standby answers the first one only, and every other one with StandbyManager
# by followers and the load balancer -> WriteManagerStatus
WRITE_MANAGER_STATUS = InternalRoute("write_manager_status", "GET", "/internal/status")
# BrokerRegistration -> BrokerRegistered
REGISTER_BROKER = InternalRoute("register_broker", "POST", "/internal/brokers")
# BrokerHeartbeat -> HeartbeatAnswer
BROKER_HEARTBEAT = InternalRoute("receive_heartbeat", "POST", "/internal/brokers/{broker_id}/heartbeat")
# ManagerHeartbeat -> ManagerHeartbeatAnswer
MANAGER_HEARTBEAT = InternalRoute("manager_heartbeat", "POST", "/internal/managers/heartbeat")
# ClaimRequest -> ClaimAnswer
CLAIM = InternalRoute("inc_offset", "POST", "/internal/claims")
# GiveBack -> {"status", "given_back": bool}
GIVE_BACK = InternalRoute("give_back", "POST", "/internal/claims/give-back")
# DeliveryReport -> {"status"}: messages sent to clients, in groups
DELIVERED = InternalRoute("deliver", "POST", "/internal/claims/delivered")
# -> ConsumerCursors
CURSORS = InternalRoute("cursors", "GET", "/internal/consumers/{consumer_id}/cursors")
# ?limit -> answers.LagList
LAGS = InternalRoute("lags", "GET", "/internal/lag")
# LeaseRequest -> LeaseAnswer
LEASE = InternalRoute("lease", "POST", "/internal/consumers/{consumer_id}/lease")
# LeaseChangesRequest -> LeaseChangesAnswer, after at most wait_ms
LEASE_CHANGES = InternalRoute("lease_changes", "POST", "/internal/leases/changes")
# models.RegisterConsumer -> {"status", "consumer_id", "new": bool}
REGISTER_CONSUMER = InternalRoute("register_consumer", "POST", "/internal/consumer/register")
# by the load balancer -> {"status", "brokers": [DataAddress]}
DATA_ADDRESSES = InternalRoute("data_addresses", "GET", "/internal/brokers")
# by the load balancer -> {"status", "managers": [ManagerAddress]}
MANAGER_ADDRESSES = InternalRoute("manager_addresses", "GET", "/internal/managers")
# by read managers -> {"status", "targets": [ScrapeTarget]}
SCRAPE_TARGETS = InternalRoute("scrape_targets", "GET", "/internal/scrape-targets")
# by read managers -> overview.ClusterState
CLUSTER_STATE = InternalRoute("cluster_state", "GET", "/internal/cluster-state")
# -> {"status", "topics": [name]}
CATALOG_TOPICS = InternalRoute("catalog_topics", "GET", "/internal/topics")
# -> TopicRecord
CATALOG_TOPIC = InternalRoute("catalog_topic", "GET", "/internal/topics/{topic}")
# models.BeginRun, Idempotency-Key -> answers.RunBegun; 409 if it runs already
BEGIN_RUN = InternalRoute("begin_run", "POST", "/internal/jobs/runs")
# {} -> answers.RunRenewed; 404, 409 if it has ended
RENEW_RUN = InternalRoute("renew_run", "POST", "/internal/jobs/runs/{run_id}/renew")
# models.RunResults -> answers.ResultsTaken; 404, 409
POST_RESULTS = InternalRoute("post_results", "POST", "/internal/jobs/runs/{run_id}/results")
# models.EndRun -> answers.Done; 404, 409
END_RUN = InternalRoute("end_run", "POST", "/internal/jobs/runs/{run_id}/end")
# parameters and answer as of the public route of that name
LISTING = InternalRoute("listing", "GET", "/internal/listings/{name}")

# Broker
# Commands of the write manager (create, delete, members, rebuild, leader) carry its epoch in http_headers.EPOCH;
# 409 StaleEpoch when the broker knows a newer one.
_PARTITION = "/internal/topics/{topic_id}/partitions/{partition_id}"
# PartitionSpec -> {"status"}
CREATE_PARTITION = InternalRoute("create_topic", "PUT", _PARTITION)
# DeletePartition -> {"status"}; 409 when it is another replica, or its group has changed since; no body up to 0.10
DELETE_PARTITION = InternalRoute("delete_topic", "DELETE", _PARTITION)
# -> {"status", "topics": [BrokerTopic]}
BROKER_TOPICS = InternalRoute("list_topics", "GET", "/internal/topics")
# -> BrokerTopic, 404
BROKER_TOPIC = InternalRoute("check_topic", "GET", "/internal/topics/{topic_id}")
# MemberChange at the leader -> {"status"}; 409 when it expects another configuration
CHANGE_MEMBERS = InternalRoute("change_members", "POST", _PARTITION + "/members")
# RebuildPartition -> {"status"}; 409 unless the replica is damaged and of that incarnation
REBUILD_PARTITION = InternalRoute("rebuild_partition", "POST", _PARTITION + "/rebuild")
# LeadershipTransfer at the leader -> {"status"}: transfer leadership
MOVE_LEADER = InternalRoute("move_leader", "POST", _PARTITION + "/leader")
# items of [APPEND_ITEM][batch][dedup records] for partitions that it leads -> AppendAnswers; write managers up to 0.9
APPEND = InternalRoute("append", "POST", "/internal/append")
# Upgrade: myqueue-append -> frames both ways, see append_frames.py
APPEND_CONNECTION = InternalRoute("append_connection", "GET", "/internal/append-connection")
# ?offset&limit -> batch and dedup records; 204 at the end; 410 below the start
MESSAGES = InternalRoute("dequeue", "GET", _PARTITION + "/messages")
# ?offset&max_bytes&wait_ms -> items of [FETCH_ITEM][batch][dedup records]; 204, 410
BATCHES = InternalRoute("fetch_inside", "GET", _PARTITION + "/batches")
# WaitRequest -> WaitAnswer, once a partition has grown or time is up; read_manager/long_poll.py calls broker/offsets.py
WAIT = InternalRoute("wait", "POST", "/internal/wait")
# OffsetsRequest -> OffsetsAnswer
OFFSETS = InternalRoute("size", "POST", "/internal/offsets")

APPEND_ITEM = struct.Struct("<I")  # size of batch and dedup records together
FETCH_ITEM = struct.Struct("<II")  # size of the batch, size of its dedup records


class WriteManagerStatus(TypedDict):
    status: Literal["success"]
    name: str
    active: bool
    epoch: int | None  # None: it was not active yet
    degraded: NotRequired[str | None]  # of an active one: what it has to do without, such as PostgreSQL


class BrokerRegistration(TypedDict):
    broker_id: int | None  # its stored or configured id; None: assign one
    endpoint: str  # http://host:port of the broker's internal listener
    raft_address: str  # host:port where other brokers reach it
    data_address: NotRequired[str]  # host:port where the load balancer reaches its data plane
    hostname: str
    incarnation: str  # 16 hex digits, made with the data file
    clock_ms: int  # its calendar clock
    partitions: list["PartitionReport"]  # all of them: registering starts the change reports anew
    # These tell the data folder from an older copy of it. Brokers up to 0.8 do not send them.
    starts: NotRequired[int]  # of this folder, this one included
    session: NotRequired[str]  # of this process, 16 hex digits
    sequence: NotRequired[int]  # of the last journal frame that this start found
    epoch: NotRequired[int]  # the highest one of a write manager that it knows. Brokers up to 0.10 do not send it


class Peer(TypedDict):
    broker_id: int
    raft_address: str


class BrokerRegistered(TypedDict):
    status: Literal["success"]
    broker_id: int
    heartbeat_interval_s: float
    peers: list[Peer]  # every registered broker, active or not
    clock_ms: int  # median of the active brokers' calendar clocks
    epoch: NotRequired[int]  # of this write manager; those up to 0.10 do not send it


class DataAddress(TypedDict):
    broker_id: int
    data_address: str
    active: bool


class HeartbeatAnswer(TypedDict):
    status: Literal["success"]
    peers: list[Peer]
    clock_ms: int


class MemberName(TypedDict):
    """One replica's data of one broker. Data that was lost and made again is another member."""

    broker_id: int
    incarnation: str  # 16 hex digits


class Configuration(TypedDict):
    index: int  # of the log entry that made it; 0: the initial one
    voters: list[MemberName]
    learners: list[MemberName]


class PartitionReport(TypedDict):
    """`configuration` is the committed one of a leader that accepts requests; null for every other replica."""

    topic_id: str  # UUID
    partition_id: int
    incarnation: str  # of this replica, 16 hex digits
    role: Literal["leader", "follower", "learner"]  # a leader that does not take requests yet is a follower here
    term: int
    configuration: Configuration | None
    beginning_offset: int
    end_offset: int
    size_bytes: int
    damaged: NotRequired[str | None]  # why the replica must be rebuilt; it has data. Brokers up to 0.8 do not send it
    # Of the newest configuration in the replica's own log, committed or not. Brokers up to 0.10 do not send it.
    configuration_index: NotRequired[int]
    # The settings that the replica has stored. Brokers up to 0.11 do not send them.
    retention_ms: NotRequired[int | None]
    retention_bytes: NotRequired[int | None]


class BrokerHeartbeat(TypedDict):
    incarnation: str
    session: NotRequired[str]
    sequence: NotRequired[int]  # of the last journal frame that is synced
    clock_ms: int
    partitions: list[PartitionReport]  # those that changed since the last answered heartbeat


class ManagerHeartbeat(TypedDict):
    name: str
    endpoint: str  # http://host:port where the load balancer reaches it
    leaving: NotRequired[bool]  # the last one: it is about to stop


class ManagerHeartbeatAnswer(TypedDict):
    status: Literal["success"]
    heartbeat_interval_s: NotRequired[float]  # from now on; write managers up to 0.7 do not send it


class ManagerAddress(TypedDict):
    name: str
    endpoint: str


class ScrapeTarget(TypedDict):
    """A process whose metrics are at {endpoint}/metrics, as far as the write manager knows; it may be away."""

    role: Literal["broker", "read_manager"]
    process: str
    endpoint: str


# How the identity of a request begins: the client's Idempotency-Key follows, or the id that the load balancer gave it.
KEY_IDENTITY = "key "
REQUEST_IDENTITY = "request "


class ClaimRequest(TypedDict):
    topic: str
    consumer_id: int
    partition_id: int | None
    identity: str  # the same identity gets the same message


class Claim(TypedDict):
    topic_id: str
    partition_id: int
    offset: int
    attempt: int  # counts the requests of this identity; only the last one may give the claim back
    # From the read manager's request on; an expired claim is not delivered. Write managers before 0.7 do not send it.
    lifetime_ms: NotRequired[int]
    endpoints: list[str]  # of the replicas on active brokers, the leader's first


class ClaimAnswer(TypedDict):
    status: Literal["success"]
    claim: Claim | None  # None: nothing to read
    token: str | None


class GiveBack(TypedDict):
    consumer_id: int
    identity: str
    attempt: int
    beginning_offset: int | None  # the message is gone: this is the first one that is still stored


class Delivered(TypedDict):
    consumer_id: int
    identity: str
    partition_id: int
    offset: int


class DeliveryReport(TypedDict):
    delivered: list[Delivered]


class Cursor(TypedDict):
    partition_id: int
    offset: int  # the next offset to read
    given_back: int  # messages below the cursor that were given back and will be read again
    member: str | None  # the member that holds the partition's lease
    client_id: NotRequired[str | None]  # of that member
    host: NotRequired[str | None]
    in_flight: NotRequired[int]  # messages claimed and not known to be delivered
    revoking: NotRequired[bool]  # that member has to give the partition up


class LeaseRequest(TypedDict):
    member: str
    released: list[int]
    leave: bool
    client_id: NotRequired[str | None]  # not in a renewal: the last ones stay
    host: NotRequired[str | None]
    held: NotRequired[list[int]]  # partitions that the member reads: theirs again after a restart of the write manager
    renewal: NotRequired[bool]  # by a poll that waits: a member that has left meanwhile does not join again


class Lease(TypedDict):
    partition_id: int
    generation: int
    cursor: int
    revoking: bool


class LeaseAnswer(TypedDict):
    status: Literal["success"]
    consumer_id: int
    topic: str
    topic_id: str
    lease_ms: int
    leases: list[Lease]


class LeaseChangesRequest(TypedDict):
    after: int  # the last number that the read manager knows
    wait_ms: int


class LeaseChange(TypedDict):
    consumer_id: int
    member: str


class LeaseChangesAnswer(TypedDict):
    status: Literal["success"]
    last: int
    complete: bool  # False: there were more changes than are listed
    changed: list[LeaseChange]


class ConsumerCursors(TypedDict):
    status: Literal["success"]
    consumer_id: int
    topic: str
    topic_id: str
    name: str | None
    partition_id: int | None  # None: all of the topic
    cursors: list[Cursor]


class DamagedReplica(TypedDict):
    broker_id: int
    reason: str


class PartitionRecord(TypedDict):
    partition_id: int
    broker_id: int | None  # the leader as far as known
    endpoints: list[str]  # of the replicas on active brokers, the leader's first
    term: int
    replicas: list[int]
    beginning_offset: int  # as last reported
    end_offset: int
    size_bytes: int
    # Write managers up to 0.8 do not send these.
    damaged: NotRequired[list["DamagedReplica"]]
    voters: NotRequired[list[int] | None]  # brokers whose replica votes in its group; None: not known


class TopicRecord(TypedDict):
    name: str
    topic_id: str
    replication: int
    retention_ms: int | None
    retention_bytes: int | None
    partitions: list[PartitionRecord]


class PartitionSpec(TypedDict):
    """What a replica is made from, the same for all of them.

    A broker whose incarnation is among the initial voters (`founders`) starts with them as voters. Any other one starts
    without a configuration until the leader adds it as a learner.
    """

    topic: str
    founders: list[MemberName]
    retention_ms: int | None
    retention_bytes: int | None


class DeletePartition(TypedDict):
    """What the decision to delete a replica was made on."""

    incarnation: str  # of the replica, 16 hex digits
    configuration: int  # index of the newest configuration of its group that the write manager has seen


class MemberChange(TypedDict):
    step: Literal["add_learner", "promote", "remove"]
    member: MemberName
    expected: int  # index of the configuration this change was decided on


class RebuildPartition(TypedDict):
    """Sent once the group has removed the damaged member: an empty replica under a new incarnation takes its place."""

    incarnation: str  # of the damaged replica, 16 hex digits


class LeadershipTransfer(TypedDict):
    broker_id: int | None  # None: to the voter whose log is the longest


class BrokerTopic(TypedDict):
    topic: str
    topic_id: str
    partitions: list[int]
