"""Settings of a broker."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from service.active_manager import ManagerUrls
from service.own_address import reachable_host
from service.settings import ServiceSettings


class BrokerSettings(ServiceSettings):
    port: int = Field(ge=1, le=65535, description="port of the broker's listener, for the other processes only")
    broker_id: int | None = Field(
        None, ge=1, le=(1 << 31) - 1, description="id of this broker; without one the write manager gives it one"
    )
    raft_port: int = Field(ge=1, le=65535, description="port where the other brokers reach it for replication")
    raft_address: str | None = Field(
        None,
        pattern=r"^[^/:]+:[0-9]{1,5}$",
        validate_default=True,
        description="address the other brokers reach that port at; host:raft-port if not set, "
        "with the machine's own address when it listens on 0.0.0.0",
    )
    data_port: int = Field(
        ge=1, le=65535, description="port of the data plane, where the load balancer hands batches in and out"
    )
    data_address: str | None = Field(
        None,
        pattern=r"^[^/:]+:[0-9]{1,5}$",
        validate_default=True,
        description="address the load balancer reaches that port at; host:data-port if not set, likewise",
    )
    endpoint: str | None = Field(
        None,
        pattern=r"^http://[^/]+$",
        validate_default=True,
        description="address the other processes reach it at; http://host:port if not set, likewise",
    )
    storage: Literal["disk", "memory"] = Field("disk", description="disk, or memory: gone when the process ends")
    data_dir: Path | None = Field(None, description="folder of the broker's files; needed for storage on disk")
    write_manager_urls: ManagerUrls = Field(
        description="internal addresses of the write managers, http://host:port, separated by commas"
    )
    append_timeout_s: float = Field(1.8, gt=0, description="how long an append may wait for a majority of the replicas")
    leader_wait_s: float = Field(
        1.2, gt=0, description="how long a request may wait for its partition to have a leader"
    )
    dedupe_window_messages: int = Field(
        100_000, ge=1, le=180_000, description="last messages with an idempotency key that each partition remembers"
    )
    disk_reserve_bytes: int = Field(
        64 << 20, ge=0, description="free space below which appends are refused; followers refuse below half of it"
    )
    read_cache_bytes: int = Field(32 << 20, ge=0, description="memory for batches that were read lately")
    read_threads: int = Field(4, ge=1, le=64, description="reads of stored batches at the same time")
    validate_threads: int = Field(2, ge=1, le=64, description="large compressed batches validated at the same time")
    journal_segment_bytes: int = Field(
        32 << 20, ge=20 << 20, le=1 << 30, description="size of a segment of the journal; three or four are kept"
    )
    segment_bytes: int = Field(
        64 << 20, ge=1 << 20, le=1 << 30, description="size of a partition's files, which retention deletes as a whole"
    )
    scrub_interval_s: float = Field(
        7 * 86400.0, gt=0, description="time in which everything that is stored is read and checked once"
    )
    memory_limit_bytes: int | None = Field(
        None, ge=1 << 20, description="limit of what storage in memory may hold; without one there is none"
    )
    max_waiting_appends: int = Field(
        4096, ge=1, description="appends that may wait for the disk before 503 is answered"
    )
    max_waiting_append_bytes: int = Field(64 << 20, ge=1, description="bytes of appends that may wait for the disk")

    @field_validator("raft_address", "data_address", "endpoint")
    @classmethod
    def _can_be_reached(cls, address: str | None, info: ValidationInfo) -> str | None:
        if address is None and "host" in info.data:
            reachable_host(info.data["host"])
        return address

    @model_validator(mode="after")
    def _disk_needs_a_folder(self) -> Self:
        if self.storage == "disk" and self.data_dir is None:
            raise ValueError("storage on disk needs --data-dir or MYQUEUE_DATA_DIR")
        return self

    @property
    def own_endpoint(self) -> str:
        return self.endpoint or f"http://{reachable_host(self.host)}:{self.port}"

    @property
    def own_raft_address(self) -> str:
        return self.raft_address or f"{reachable_host(self.host)}:{self.raft_port}"

    @property
    def own_data_address(self) -> str:
        return self.data_address or f"{reachable_host(self.host)}:{self.data_port}"

    @property
    def folder(self) -> Path | None:
        return self.data_dir if self.storage == "disk" else None
