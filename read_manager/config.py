"""Settings of a read manager."""

from pydantic import Field, ValidationInfo, field_validator

from db.settings import DatabaseSettings
from service.active_manager import ManagerUrls
from service.own_address import hostname, reachable_host
from service.settings import ServiceSettings


class ReadManagerSettings(DatabaseSettings, ServiceSettings):
    name: str | None = Field(
        None,
        min_length=1,
        max_length=200,
        description="name in logs and heartbeats, unique in the cluster; read-manager@ and the host name if not set",
    )
    port: int = Field(5001, ge=1, le=65535, description="listener: the load balancer sends reads here")
    endpoint: str | None = Field(
        None,
        pattern=r"^http://[^/]+$",
        validate_default=True,
        description="address the load balancer reaches it at; http://host:port if not set, "
        "with the machine's own address when it listens on 0.0.0.0",
    )
    write_manager_urls: ManagerUrls = Field(
        ("http://127.0.0.1:5100",), description="internal addresses of the write managers, separated by commas"
    )
    leave_s: float = Field(
        1.5,
        ge=0,
        description="how long it still serves after its last heartbeat; nginx reads the list of managers every second",
    )
    replay_patience_s: float = Field(
        0.05, ge=0, description="how long to wait for a standby's replay before asking the write manager"
    )
    leader_wait_s: float = Field(1.2, gt=0, description="how long a request waits for a partition's leader")
    max_waiters: int = Field(2048, ge=0, description="requests that may wait for messages at the same time")
    max_streams: int = Field(
        2048, ge=0, description="event streams that may be open at the same time before 503 is answered"
    )
    answer_memory_bytes: int = Field(
        96 << 20, ge=8 << 20, description="memory for stored messages of answers in flight; requests beyond it wait"
    )
    grant_s: float = Field(60, ge=5, description="lifetime of a grant for the data plane")

    @field_validator("endpoint")
    @classmethod
    def _can_be_reached(cls, endpoint: str | None, info: ValidationInfo) -> str | None:
        if endpoint is None and "host" in info.data:
            reachable_host(info.data["host"])
        return endpoint

    @property
    def own_name(self) -> str:
        return self.name or f"read-manager@{hostname()}"

    @property
    def own_endpoint(self) -> str:
        return self.endpoint or f"http://{reachable_host(self.host)}:{self.port}"
