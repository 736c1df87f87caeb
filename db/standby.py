"""Read transactions of a read manager, on a standby of the metadata database."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import text
from sqlalchemy.orm import Session

from db.servers import DatabaseServers, unavailable_if_lost
from db.settings import DatabaseAddress
from myqueue.protocol.errors import MetadataUnavailable

STANDBY_CONNECTIONS = 8


class Standby:
    """Reads from the first standby that answers; from the primary only while none does."""

    def __init__(self, address: DatabaseAddress, application: str) -> None:
        self._servers = DatabaseServers(address, "standby", application, avoid_s=5.0)
        self._engine = self._servers.engine(STANDBY_CONNECTIONS)

    @contextmanager
    def reading(self) -> Iterator[Session]:
        with unavailable_if_lost(), self._engine.connect() as connection, Session(connection) as session:
            yield session

    def probe(self) -> None:
        """Called every few seconds: requests need not probe servers that failed."""
        self._servers.probe()

    def problem(self) -> str | None:
        try:
            with self.reading() as session:
                session.execute(text("SELECT 1"))
        except MetadataUnavailable as error:
            return error.message
        return None

    def close(self) -> None:
        self._engine.dispose()
