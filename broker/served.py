"""What the driver needs of a replica that it serves."""

from typing import Protocol

from broker.raft.effects import Applied, CommittedEntries, Dropped, RoleChanged
from broker.raft.entry import LogEntry
from broker.storage.partition_log import PartitionLog


class Served(Protocol):
    """A replica for its readers. Called on the loop; must not block."""

    @property
    def log(self) -> PartitionLog: ...

    def role_changed(self, change: RoleChanged) -> None: ...

    def applied(self, applied: Applied) -> None: ...

    def committed(self, committed: CommittedEntries) -> None: ...

    def dropped(self, dropped: Dropped) -> None: ...

    def closed(self) -> None: ...

    def read_entries(self, first_index: int, max_bytes: int) -> tuple[LogEntry, ...] | None:
        """Off the loop. None: they cannot be read."""
        ...
