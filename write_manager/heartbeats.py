"""Heartbeats and registrations of brokers and read managers: taken in memory at once, their changes stored later."""

import asyncio
import ipaddress
import re
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from uuid import UUID

from pydantic import TypeAdapter

from db import broker_registry, catalog
from db.primary import Primary
from myqueue.protocol import internal
from myqueue.protocol.errors import BrokerNotFound, InvalidRequest
from myqueue.protocol.internal import (
    BrokerHeartbeat,
    BrokerRegistered,
    BrokerRegistration,
    ManagerAddress,
    ManagerHeartbeat,
    ManagerHeartbeatAnswer,
    ScrapeTarget,
)
from service.http_messages import HttpRequest, HttpResponse
from service.logs import Log
from service.router import Router
from write_manager.broker_commands import BrokerCommands
from write_manager.brokers import Brokers
from write_manager.metadata_cache import MetadataCache
from write_manager.read_managers import ReadManagers, check_name

STAMP_INTERVAL_S = 5.0
MAX_ENDPOINT_CHARS = 300  # as much as is stored
# The host is a name, an IPv4 address or an IPv6 address in brackets; the load balancer takes nothing else either.
_ENDPOINT = re.compile(r"http://(?:([A-Za-z0-9._-]+)|\[([0-9A-Fa-f:.]+)\]):([0-9]{1,5})")
_MAX_PORT = 65535

_REGISTRATION = TypeAdapter(BrokerRegistration)
_BROKER_HEARTBEAT = TypeAdapter(BrokerHeartbeat)
_MANAGER_HEARTBEAT = TypeAdapter(ManagerHeartbeat)


class AllowedNetworks:
    """Brokers and read managers are called at the endpoints that they name, so these must lie in the cluster."""

    def __init__(self, networks: Sequence[str]) -> None:
        self._networks = [ipaddress.ip_network(network) for network in networks]

    def check_endpoint(self, endpoint: str) -> None:
        self._check(endpoint, "endpoint", "http://host:port")

    def check_data_address(self, address: str) -> None:
        self._check(f"http://{address}", "data_address", "host:port")

    def _check(self, endpoint: str, field: str, shape: str) -> None:
        if len(endpoint) > MAX_ENDPOINT_CHARS:
            raise InvalidRequest(f"{field}: longer than {MAX_ENDPOINT_CHARS} characters")
        found = _ENDPOINT.fullmatch(endpoint)
        if found is None or not 1 <= int(found[3]) <= _MAX_PORT:
            raise InvalidRequest(f"{field}: must be {shape}")
        host = found[1] or found[2]
        try:
            resolved = socket.getaddrinfo(host, int(found[3]), proto=socket.IPPROTO_TCP)
        except (OSError, UnicodeError):  # the latter for names with a part that is empty or too long
            raise InvalidRequest(f"{field}: {host} cannot be resolved") from None
        for *_, address in resolved:
            if not any(ipaddress.ip_address(address[0]) in network for network in self._networks):
                raise InvalidRequest(
                    f"{field}: lies outside the networks in which brokers and read managers may be; "
                    "the write manager's --broker-networks names them"
                )


class Heartbeats:
    def __init__(
        self,
        primary: Primary,
        cache: MetadataCache,
        brokers: Brokers,
        read_managers: ReadManagers,
        networks: AllowedNetworks,
        log: Log,
        *,
        ttl_s: float,
    ) -> None:
        self._primary = primary
        self._cache = cache
        self._brokers = brokers
        self._read_managers = read_managers
        self._networks = networks
        self._log = log
        self._ttl_s = ttl_s
        self._storing = threading.Lock()  # one transaction at a time stores reports
        self._stamped_s = 0.0
        self.load_balancer_seen_s: float | None = None

    def load(self) -> None:
        self._brokers.load()
        with self._primary.reading() as session:
            managers = broker_registry.managers(session)
        self._read_managers.load(managers, time.monotonic())

    def register_broker(self, request: BrokerRegistration) -> BrokerRegistered:
        self._networks.check_endpoint(request["endpoint"])
        if request.get("data_address"):
            self._networks.check_data_address(request["data_address"])
        return self._brokers.register(request)

    def needs_check(self, request: ManagerHeartbeat) -> bool:
        """Whether its endpoint has to be resolved, which may take long."""
        return not self._read_managers.has(request["name"], request["endpoint"])

    def read_manager_heartbeat(self, request: ManagerHeartbeat) -> None:
        name, endpoint = request["name"], request["endpoint"]
        check_name(name)
        if self.needs_check(request):
            self._networks.check_endpoint(endpoint)
        if request.get("leaving"):
            self._read_managers.leave(name, time.monotonic())
            return
        before = self._read_managers.heartbeat(name, endpoint, time.monotonic())
        if before is not None:
            self._log.warning(
                "read manager moved; again and again means that two have the same --name",
                name=name,
                endpoint=endpoint,
                before=before,
            )

    def read_manager_addresses(self) -> list[ManagerAddress]:
        """For the load balancer, which asks every second: that is its heartbeat."""
        self.load_balancer_seen_s = time.monotonic()
        return [{"name": manager.name, "endpoint": manager.endpoint} for manager in self._read_managers.active()]

    def scrape_targets(self) -> list[ScrapeTarget]:
        """Brokers and read managers, also those that are away: whoever collects metrics shows that they are."""
        brokers: list[ScrapeTarget] = [
            {"role": "broker", "process": f"broker-{broker.broker_id}", "endpoint": broker.row.endpoint}
            for broker in self._brokers.known()
        ]
        managers: list[ScrapeTarget] = [
            {"role": "read_manager", "process": manager.name, "endpoint": manager.endpoint}
            for manager in self._read_managers.known()
        ]
        return brokers + managers

    def sweep(self) -> None:
        """Expire brokers and read managers."""
        self._brokers.sweep()
        for name in self._read_managers.sweep(time.monotonic()):
            self._log.warning("read manager is silent", name=name)

    @contextmanager
    def storing(self) -> Iterator[None]:
        """No report that was received before is stored after this."""
        with self._storing:
            yield

    def store(self) -> None:
        """Store changes of status, reports of leaders, and now and then the time of the heartbeats."""
        with self._storing:
            self._store_changes()

    def _store_changes(self) -> None:
        now_s, now = time.monotonic(), datetime.now(UTC)
        stamp = now_s - self._stamped_s >= STAMP_INTERVAL_S
        recent = [b.broker_id for b in self._brokers.known() if b.active and now_s - b.last_heartbeat_s <= self._ttl_s]
        changes = self._brokers.take_changes()
        managers = self._read_managers.take_changes(now_s, stamp=stamp)
        if not (changes or managers or stamp):
            return
        names = {topic_id: topic.name for topic_id, topic in list(self._cache.topics_by_id.items())}
        try:
            with self._primary.transaction() as transaction:
                session = transaction.session
                for broker, active in changes.statuses:
                    broker_registry.set_broker_status(session, broker.broker_id, "active" if active else "inactive")
                for folder in changes.folders:
                    broker_registry.save_folder(session, folder)
                for (topic_id, partition_id), voters in changes.new_logs.items():
                    catalog.reset_partition(session, UUID(topic_id), partition_id, voters, voters)
                catalog.record_reports(
                    session,
                    names,
                    {b: by_partition.values() for b, by_partition in changes.reports.items()},
                    changes.states,
                )
                for manager in managers.changed:
                    status = "active" if manager.active else "inactive"
                    when = now - timedelta(seconds=now_s - manager.last_heartbeat_s)
                    broker_registry.save_manager(session, manager.name, manager.endpoint, status, when)
                if managers.forgotten:
                    broker_registry.forget_managers(session, managers.forgotten)
                if stamp:
                    broker_registry.stamp_brokers(session, recent, now)
        except Exception:
            self._brokers.put_back(changes)
            raise
        self._brokers.changes_stored(changes)
        self._read_managers.changes_stored(managers)
        if stamp:
            self._stamped_s = now_s


def add_heartbeat_routes(router: Router, heartbeats: Heartbeats, brokers: Brokers, commands: BrokerCommands) -> None:
    """Heartbeats are taken on the event loop: they must not queue behind requests that wait for PostgreSQL."""

    def register_broker(request: HttpRequest) -> HttpResponse:
        registration = request.parse_internal(_REGISTRATION)
        epoch = commands.confirm_epoch(registration.get("epoch", 0))
        return HttpResponse.json({**heartbeats.register_broker(registration), "epoch": epoch})

    async def broker_heartbeat(request: HttpRequest) -> HttpResponse:
        broker_id = request.path_values["broker_id"]
        if not (broker_id.isascii() and broker_id.isdecimal() and len(broker_id) <= 10):
            raise BrokerNotFound()
        brokers.heartbeat(int(broker_id), request.parse_internal(_BROKER_HEARTBEAT))
        return HttpResponse.json({"status": "success", "peers": brokers.peers(), "clock_ms": brokers.median_clock_ms()})

    async def manager_heartbeat(request: HttpRequest) -> HttpResponse:
        heartbeat = request.parse_internal(_MANAGER_HEARTBEAT)
        if heartbeats.needs_check(heartbeat):
            await asyncio.to_thread(heartbeats.read_manager_heartbeat, heartbeat)
        else:
            heartbeats.read_manager_heartbeat(heartbeat)
        answer: ManagerHeartbeatAnswer = {
            "status": "success",
            "heartbeat_interval_s": brokers.heartbeat_interval_s,
        }
        return HttpResponse.json(answer)

    async def data_addresses(_: HttpRequest) -> HttpResponse:
        return HttpResponse.json({"status": "success", "brokers": brokers.data_addresses()})

    async def scrape_targets(_: HttpRequest) -> HttpResponse:
        return HttpResponse.json({"status": "success", "targets": heartbeats.scrape_targets()})

    async def manager_addresses(_: HttpRequest) -> HttpResponse:
        return HttpResponse.json({"status": "success", "managers": heartbeats.read_manager_addresses()})

    router.add(internal.REGISTER_BROKER, register_broker)
    router.add(internal.BROKER_HEARTBEAT, broker_heartbeat, quiet=True)
    router.add(internal.MANAGER_HEARTBEAT, manager_heartbeat, quiet=True)
    router.add(internal.DATA_ADDRESSES, data_addresses, quiet=True)
    router.add(internal.MANAGER_ADDRESSES, manager_addresses, quiet=True)
    router.add(internal.SCRAPE_TARGETS, scrape_targets, quiet=True)
