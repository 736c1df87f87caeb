"""Settings of the write manager."""

from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator
from pydantic_settings import NoDecode

from db.settings import DatabaseSettings
from service.settings import ServiceSettings
from write_manager.liveness import STALL_SHARE
from write_manager.stats_history import HistoryTiers


class WriteManagerSettings(DatabaseSettings, ServiceSettings):
    port: int = Field(5000, ge=1, le=65535, description="public listener: the load balancer sends writes here")
    internal_port: int = Field(5100, ge=1, le=65535, description="internal listener for brokers and read managers")
    name: str = Field(
        "write-manager-1",
        pattern=r"^[!-~]+$",  # PostgreSQL replaces other characters in the names of sessions
        description="name in logs, in its lease and in the epoch row: printable ASCII without spaces; each write "
        "manager needs its own",
    )
    standby_takeover_s: float = Field(
        3.0, gt=0, description="a standby takes over when the active one has not renewed its lease for this long"
    )
    standby_renew_s: float = Field(
        0.5, gt=0, description="how often the active one renews its lease; less than a quarter of standby_takeover_s"
    )
    broker_ttl_s: float = Field(5, gt=0, description="a broker without heartbeat for this long is inactive")
    heartbeat_interval_s: float = Field(
        1,
        gt=0,
        description="how often brokers and read managers send heartbeats; less than half of broker_ttl_s",
    )
    reconcile_interval_s: float = Field(1, gt=0, description="how often brokers are made to match the catalog")
    settle_s: float = Field(5, ge=0, description="how long a broker must be back before it leads again")
    leader_wait_s: float = Field(1.2, gt=0, description="how long a request waits for a partition's leader")
    request_timeout_s: float = Field(1.8, gt=0, description="how long a produce may take in all")
    lease_s: float = Field(3.0, gt=0, description="how long a consumer's member keeps its partitions after it polled")
    claim_s: float = Field(
        10.0,
        gt=0,
        description="how long a read manager may take to deliver a message it has claimed; then it is read again",
    )
    max_claims_in_flight: int = Field(
        1024,
        ge=1,
        description="messages of one consumer that may be claimed and not delivered yet before 503 is answered",
    )
    run_lease_s: float = Field(30.0, gt=0, description="how long a job's run counts as running after it was renewed")
    stats_history_days: float = Field(
        7.0, gt=0, description="how long runs of jobs, and messages of topics by the minute, are kept"
    )
    stats_history: str = Field(
        "run:1d,5m:30d,1h:365d",
        description="points of statistics: those of every run for so long, then one for each step for so long, …",
    )
    nameless_ttl_s: float = Field(
        7 * 24 * 3600.0, gt=0, description="producers and consumers without a name that are silent for this long expire"
    )
    deleted_topic_ttl_s: float = Field(
        7 * 24 * 3600.0,
        gt=0,
        description="a broker that was away for longer keeps its data of topics deleted meanwhile",
    )
    cleanup_interval_s: float = Field(5, gt=0, description="how often rows that are not needed any more are deleted")
    max_measured_cursors: int = Field(
        5000,
        ge=1,
        description="cursors of named consumers whose lag is measured; a consumer has one for each partition it reads",
    )
    max_partitions: int = Field(1000, ge=1, description="partitions in the whole cluster")
    topic_creations_per_minute: int = Field(
        60, ge=1, description="topics that one client address may create in a minute by registering producers"
    )
    broker_networks: Annotated[tuple[str, ...], NoDecode] = Field(
        ("127.0.0.0/8",), description="networks in which brokers and read managers may be, separated by commas"
    )

    @field_validator("stats_history")
    @classmethod
    def _tiers(cls, text: str) -> str:
        HistoryTiers.parse(text)
        return text

    @field_validator("broker_networks", mode="before")
    @classmethod
    def _networks(cls, value: object) -> object:
        return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value

    @field_validator("standby_renew_s")
    @classmethod
    def _often_enough(cls, value: float, info: ValidationInfo) -> float:
        takeover_s = info.data.get("standby_takeover_s")
        if takeover_s is not None and value >= takeover_s / 4:
            raise ValueError(f"must be less than a quarter of standby_takeover_s, which is {takeover_s:g}")
        return value

    @field_validator("heartbeat_interval_s")
    @classmethod
    def _below_ttl(cls, value: float, info: ValidationInfo) -> float:
        ttl_s = info.data.get("broker_ttl_s")  # missing when it is wrong itself
        if ttl_s is not None and value >= STALL_SHARE * ttl_s:
            raise ValueError(f"must be less than half of broker_ttl_s, which is {ttl_s:g}")
        return value
