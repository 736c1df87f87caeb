"""Read transactions of a read manager, on a standby of the metadata database."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sqlalchemy import text
from sqlalchemy.orm import Session

from db.servers import DatabaseServer, DatabaseServers, unavailable_if_lost
from db.settings import DatabaseAddress
from myqueue.protocol.errors import MetadataUnavailable

STANDBY_CONNECTIONS = 8
DETACHED_CONNECTIONS = 1


class Standby:
    """Reads from the first standby that answers and follows the primary; from the primary only while none does."""

    def __init__(self, address: DatabaseAddress, application: str) -> None:
        self._servers = DatabaseServers(address, "standby", application, avoid_s=5.0)
        self._engine = self._servers.engine(STANDBY_CONNECTIONS)
        self._detached_engine = self._servers.engine(DETACHED_CONNECTIONS, detached=True)

    @contextmanager
    def reading(self, *, detached: bool = False) -> Iterator[Session]:
        """`detached`: also from a standby that has lost its primary. What it has may be of long ago."""
        engine = self._detached_engine if detached else self._engine
        with unavailable_if_lost(), engine.connect() as connection, Session(connection) as session:
            yield session

    def probe(self) -> None:
        """Called every second: requests need not probe servers that failed, and use none that was replaced."""
        self._servers.probe()

    @property
    def servers(self) -> Sequence[DatabaseServer]:
        """With their states as of the last probe."""
        return self._servers.servers

    @property
    def timeline(self) -> int:
        """The current one, as far as this process has seen."""
        return self._servers.current.highest

    def problem(self) -> str | None:
        try:
            with self.reading() as session:
                session.execute(text("SELECT 1"))
        except MetadataUnavailable as error:
            return error.message
        return None

    def close(self) -> None:
        self._engine.dispose()
        self._detached_engine.dispose()
        self._servers.close()
