"""Settings of a read manager."""

from pydantic import Field

from db.settings import DatabaseSettings
from service.settings import Settings


class ReadManagerSettings(DatabaseSettings, Settings):
    name: str = Field("read-manager-1", description="name in logs and heartbeats; unique in the cluster")
    port: int = Field(5001, ge=1, le=65535, description="listener: the load balancer sends reads here")
    endpoint: str | None = Field(None, description="http://host:port where others reach it; default from host and port")
    write_manager_url: str = Field("http://127.0.0.1:5100", description="internal address of the write manager")
    heartbeat_interval_s: float = Field(1, gt=0, description="how often to tell the write manager that it is alive")
    replay_patience_s: float = Field(0.05, ge=0, description="how long to wait for a standby before asking elsewhere")
    leader_wait_s: float = Field(1.2, gt=0, description="how long a request waits for a partition's leader")
    max_waiters: int = Field(2048, ge=0, description="requests that may wait for messages at the same time")
    answer_memory_bytes: int = Field(
        96 << 20, ge=8 << 20, description="stored messages in hand for answers; who asks for more waits for room"
    )
    grant_s: float = Field(60, ge=5, description="how long a grant for the data plane is good")

    @property
    def own_endpoint(self) -> str:
        return self.endpoint or f"http://{self.host}:{self.port}"
