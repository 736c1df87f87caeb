"""The catalog as this read manager sees it: its standby first, the write manager where that cannot know."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from sqlalchemy.orm import Session

from db import broker_registry, catalog
from db.listings import LISTINGS, Listing
from db.servers import ServerRoles
from db.session_tokens import wait_for_replay
from db.standby import Standby
from myqueue.protocol import routes
from myqueue.protocol.answers import Answer, Cluster, ClusterDatabase, ConsumerDescription
from myqueue.protocol.errors import ConsumerNotFound, MetadataUnavailable, TopicNotFound
from myqueue.protocol.internal import TopicRecord
from myqueue.protocol.models import Nothing, Query
from myqueue.protocol.token import Token
from read_manager.write_manager_calls import WriteManagerCalls

T = TypeVar("T")


class Catalog:
    def __init__(
        self, standby: Standby, servers: ServerRoles, write_manager: WriteManagerCalls, *, replay_patience_s: float
    ) -> None:
        self._standby = standby
        self._servers = servers
        self._write_manager = write_manager
        self._replay_patience_s = replay_patience_s

    def topics(self, token: Token | None) -> list[str]:
        return self._standby_or(catalog.topic_names, self._write_manager.topics, token)

    def topic(self, name: str, token: Token | None = None) -> TopicRecord:
        return self._standby_or(
            lambda session: catalog.topic_record(session, name), lambda: self._write_manager.topic(name), token
        )

    def _standby_or(self, read: Callable[[Session], T | None], ask: Callable[[], T], token: Token | None) -> T:
        """A standby that is behind the token, finds nothing or does not answer has no say."""
        found: T | None = None
        with suppress(MetadataUnavailable), self._standby.reading() as session:
            if token is None or wait_for_replay(session, token, self._replay_patience_s):
                found = read(session)
        # Only now: others can use the connection while the write manager answers.
        return found if found else ask()

    def consumer(self, consumer_id: int, token: Token | None) -> ConsumerDescription:
        def stored(session: Session) -> ConsumerDescription | None:
            row = catalog.consumer(session, consumer_id)
            if row is None:
                return None
            return ConsumerDescription(
                consumer_id=consumer_id, topic=row.topic_name, name=row.name, partition_id=row.partition_id
            )

        def asked() -> ConsumerDescription:
            answer = self._write_manager.cursors(consumer_id)
            return ConsumerDescription(
                consumer_id=consumer_id,
                topic=answer["topic"],
                name=answer["name"],
                partition_id=answer["partition_id"],
            )

        return self._standby_or(stored, asked, token)

    def listed(self, listing: Listing, query: Query, token: Token | None) -> Answer | Mapping[str, Any]:
        def stored(session: Session) -> Answer | Mapping[str, Any] | None:
            try:
                return listing.read(session, query)
            except (TopicNotFound, ConsumerNotFound):
                return None

        def asked() -> Answer | Mapping[str, Any]:
            return self._write_manager.listed(listing.route.name, query)

        return self._standby_or(stored, asked, token)

    def cluster(self, token: Token | None) -> Cluster:
        found = self.listed(LISTINGS[routes.CLUSTER.name], Nothing(), token)
        cluster = found if isinstance(found, Cluster) else Cluster.model_validate(found)
        cluster.databases = [
            ClusterDatabase(role=role, state="inactive" if role is None else "active") for role in self._servers.roles()
        ]
        return cluster

    def problem(self) -> str | None:
        """What is wrong with the standby, or with the brokers as it sees them."""
        try:
            with self._standby.reading() as session:
                return (
                    None
                    if any(b.status == "active" for b in broker_registry.brokers(session))
                    else "no broker is active"
                )
        except MetadataUnavailable as error:
            return error.message
