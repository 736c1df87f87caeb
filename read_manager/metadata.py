"""Metadata reads: from a PostgreSQL standby, or from the write manager where the standby cannot know."""

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
from myqueue.protocol.answers import Answer, Cluster, ClusterDatabase, ConsumerDescription, TopicDescription
from myqueue.protocol.errors import ConsumerNotFound, MetadataUnavailable, NoTopics, TopicNotFound
from myqueue.protocol.internal import TopicRecord
from myqueue.protocol.models import Nothing, Query
from myqueue.protocol.token import Token
from read_manager.write_manager_client import WriteManagerClient

T = TypeVar("T")


class Metadata:
    def __init__(
        self, standby: Standby, servers: ServerRoles, write_manager: WriteManagerClient, *, replay_patience_s: float
    ) -> None:
        self._standby = standby
        self._servers = servers
        self._write_manager = write_manager
        self._replay_patience_s = replay_patience_s

    def topics(self, token: Token | None) -> list[str]:
        names = self._standby_or(catalog.topic_names, self._write_manager.topics, token)
        if not names:
            raise NoTopics()
        return names

    def topic(self, name: str, token: Token | None = None) -> TopicRecord:
        return self._standby_or(
            lambda session: catalog.topic_record(session, name), lambda: self._write_manager.topic(name), token
        )

    def describe_topic(self, name: str, token: Token | None) -> TopicDescription:
        topic = self.topic(name, token)
        return TopicDescription(
            topic=name,
            topic_id=topic["topic_id"],
            partitions=len(topic["partitions"]),
            replication=topic["replication"],
            retention_ms=topic["retention_ms"],
            retention_bytes=topic["retention_bytes"],
        )

    def _standby_or(self, read: Callable[[Session], T | None], ask: Callable[[], T], token: Token | None) -> T:
        """The standby's answer, unless it is behind the token, finds nothing or does not answer."""
        found: T | None = None
        with suppress(MetadataUnavailable), self._standby.reading() as session:
            if token is None or wait_for_replay(session, token, self._replay_patience_s):
                found = read(session)
        # Asked outside of the session: the pool can lend the connection while the write manager answers.
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
        """Why this manager is not ready: no standby answers, or none of the brokers it lists is active."""
        try:
            with self._standby.reading() as session:
                return (
                    None
                    if any(b.status == "active" for b in broker_registry.brokers(session))
                    else "no broker is active"
                )
        except MetadataUnavailable as error:
            return error.message
