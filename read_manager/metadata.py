"""Metadata: topics, consumers, statistics, from a standby or else from the write manager.

Reads run on threads, because PostgreSQL's driver blocks.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from sqlalchemy.orm import Session

from db import broker_registry, catalog
from db.listings import Listing
from db.session_tokens import wait_for_replay
from db.standby import Standby
from db.stats_listings import LISTINGS
from myqueue.protocol import routes
from myqueue.protocol.answers import (
    Answer,
    ConsumerDescription,
    ConsumerList,
    ConsumerRegistered,
    TopicDescription,
    TopicList,
)
from myqueue.protocol.errors import (
    ConsumerNotFound,
    MetadataUnavailable,
    MyQueueError,
    NoTopics,
    TopicNotFound,
    Unavailable,
)
from myqueue.protocol.internal import TopicRecord
from myqueue.protocol.models import ListConsumers, Nothing, Query, RegisterConsumer
from myqueue.protocol.stats_queries import StatsQuery
from myqueue.protocol.token import Token
from read_manager.stats_tables import plotter, table_response, wanted_format
from read_manager.write_manager_client import WriteManagerClient
from service.http_messages import HttpRequest, HttpResponse, LoopHandler, ThreadHandler
from service.router import Router

T = TypeVar("T")

NOT_FOUND = 404


class Metadata:
    """Reads of a standby that fall back to the write manager. Call it on threads only."""

    def __init__(self, standby: Standby, write_manager: WriteManagerClient, *, replay_timeout_s: float) -> None:
        self._standby = standby
        self._write_manager = write_manager
        self._replay_timeout_s = replay_timeout_s

    def read(self, read: Callable[[Session], T | None], ask: Callable[[], T], token: Token | None) -> T:
        """`read` of the standby, or `ask` if it is behind the token, finds nothing or does not answer.

        That something is missing is known only while PostgreSQL answers: the write manager's memory may lack what a
        change of unknown outcome has stored, or another write manager.
        """
        found: T | None = None
        away: MetadataUnavailable | None = None
        try:
            with self._standby.reading() as session:
                if token is None or wait_for_replay(session, token, self._replay_timeout_s):
                    found = read(session)
        except MetadataUnavailable as error:
            away = error
        if found:
            return found
        # Asked outside of the session: the pool can lend the connection while the write manager answers.
        try:
            asked = ask()
        except Unavailable:
            found = self._read_detached(read, token)
            if found:
                return found
            raise
        except MyQueueError as error:
            if away is None or error.http_status != NOT_FOUND:
                raise
            raise MetadataUnavailable(retry_after_s=1) from error
        if away is not None and not asked:
            raise MetadataUnavailable(retry_after_s=1) from away
        return asked

    def _read_detached(self, read: Callable[[Session], T | None], token: Token | None) -> T | None:
        """From a standby that has lost its primary. What it does not have may exist all the same."""
        with suppress(MetadataUnavailable), self._standby.reading(detached=True) as session:
            if token is None or wait_for_replay(session, token, 0):
                return read(session)
        return None

    def topics(self, token: Token | None) -> list[str]:
        return self.read(catalog.topic_names, lambda: self._write_manager.topics(token), token)

    def topic(self, name: str, token: Token | None = None) -> TopicRecord:
        return self.read(
            lambda session: catalog.topic_record(session, name), lambda: self._write_manager.topic(name, token), token
        )

    def consumer(self, topic: str, name: str, token: Token | None = None) -> int | None:
        """The id of the topic's consumer of this name."""
        query = ListConsumers(topic=topic, name=name)
        listing = LISTINGS[routes.LIST_CONSUMERS.name]

        def stored(session: Session) -> list[Any] | None:
            try:
                return list(listing.read(session, query).model_dump()["consumers"])
            except TopicNotFound:
                return None

        found = self.read(
            stored, lambda: self._write_manager.listed(listing.route.name, query, token)["consumers"], token
        )
        return found[0]["consumer_id"] if found else None

    def problem(self) -> str | None:
        """Why this manager is not ready: no standby answers, or none of the brokers it lists is active."""
        try:
            with self._standby.reading() as session:
                active = any(broker.status == "active" for broker in broker_registry.brokers(session))
        except MetadataUnavailable as error:
            return error.message
        return None if active else "no broker is active"


class MetadataHandler:
    def __init__(
        self,
        metadata: Metadata,
        write_manager: WriteManagerClient,
        *,
        cached: Callable[[ThreadHandler], LoopHandler],
    ) -> None:
        """`cached` answers a handler's requests from a cache."""
        self._metadata = metadata
        self._write_manager = write_manager
        self._cached = cached

    def add_routes(self, router: Router) -> None:
        router.add(routes.LIST_TOPICS, self._cached(self.list_topics))
        router.add(routes.DESCRIBE_TOPIC, self._cached(self.describe_topic))
        router.add(routes.DESCRIBE_CONSUMER, self.describe_consumer)
        router.add(routes.REGISTER_CONSUMER, self.register_consumer)
        for listing in LISTINGS.values():
            if listing.route != routes.CLUSTER:  # which has a handler of its own
                router.add(listing.route, self._lister(listing))
        router.add(routes.STATS_PLOT, plotter(self._listed))

    def list_topics(self, request: HttpRequest) -> HttpResponse:
        request.parse_query(Nothing)
        names = self._metadata.topics(request.session_token())
        if not names:
            raise NoTopics()
        return HttpResponse.json(TopicList(topics=names))

    def describe_topic(self, request: HttpRequest) -> HttpResponse:
        request.parse_query(Nothing)
        topic = self._metadata.topic(request.path_topic(), request.session_token())
        description = TopicDescription(
            topic=topic["name"],
            topic_id=topic["topic_id"],
            partitions=len(topic["partitions"]),
            replication=topic["replication"],
            retention_ms=topic["retention_ms"],
            retention_bytes=topic["retention_bytes"],
        )
        return HttpResponse.json(description)

    def describe_consumer(self, request: HttpRequest) -> HttpResponse:
        request.parse_query(Nothing)
        consumer_id = request.path_id("consumer_id", ConsumerNotFound)

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

        return HttpResponse.json(self._metadata.read(stored, asked, request.session_token()))

    def register_consumer(self, request: HttpRequest) -> HttpResponse:
        request.parse_json(RegisterConsumer)
        consumer_id, new = self._write_manager.register_consumer(json.loads(request.body))
        return HttpResponse.json(ConsumerRegistered(consumer_id=consumer_id), 201 if new else 200)

    def _lister(self, listing: Listing) -> ThreadHandler:
        def list_rows(request: HttpRequest) -> HttpResponse:
            query = request.parse_query(listing.query)
            body = self._listed(listing, query, request.session_token())
            kind = wanted_format(request, query) if isinstance(query, StatsQuery) else "json"
            if not isinstance(query, StatsQuery) or kind == "json":
                return HttpResponse.json(body)
            rows = body.model_dump() if isinstance(body, Answer) else body
            return table_response(listing.route.name, query, rows, kind)

        return list_rows

    def _listed(self, listing: Listing, query: Query, token: Token | None) -> Answer | Mapping[str, Any]:
        def stored(session: Session) -> Answer | Mapping[str, Any] | None:
            try:
                found = listing.read(session, query)
            except (TopicNotFound, ConsumerNotFound):
                return None
            asks_for_one = isinstance(query, ListConsumers) and query.name is not None
            return None if asks_for_one and isinstance(found, ConsumerList) and not found.consumers else found

        def asked() -> Answer | Mapping[str, Any]:
            return self._write_manager.listed(listing.route.name, query, token)

        return self._metadata.read(stored, asked, token)
