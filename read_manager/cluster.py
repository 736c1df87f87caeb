"""The state of the cluster, and what is degraded. It is answered also while the catalog cannot be read."""

import time
from collections.abc import Callable, Sequence
from typing import Literal

from sqlalchemy.orm import Session

from db.servers import DatabaseServer
from db.standby import Standby
from db.stats_listings import LISTINGS
from myqueue.protocol import routes
from myqueue.protocol.answers import Cluster, ClusterDatabase, ClusterWriteManager
from myqueue.protocol.errors import Unavailable
from myqueue.protocol.models import Nothing
from myqueue.protocol.token import Token
from read_manager.metadata import Metadata
from read_manager.write_manager_client import WriteManagerClient
from service.active_manager import ManagerCaller, ManagerStatus, status_in
from service.http_messages import HttpRequest, HttpResponse, LoopHandler, ThreadHandler
from service.router import Router

READ_INTERVAL_S = 10.0  # of the catalog, whether anybody asks or not
_ROLE_ORDER = ("primary", "standby", None)


class ClusterHandler:
    def __init__(
        self,
        metadata: Metadata,
        standby: Standby,
        write_manager: WriteManagerClient,
        managers: ManagerCaller,
        *,
        cached: Callable[[ThreadHandler], LoopHandler],
    ) -> None:
        self._metadata = metadata
        self._standby = standby
        self._write_manager = write_manager
        self._managers = managers
        self._cached = cached
        self._last: tuple[Cluster, float] | None = None  # what the catalog last said, and when

    def add_routes(self, router: Router) -> None:
        router.add(routes.CLUSTER, self._cached(self.cluster))

    def cluster(self, request: HttpRequest) -> HttpResponse:
        request.parse_query(Nothing)
        cluster, age_s = self._catalog(request.session_token())
        write_managers = [write_manager(status_in(result)) for result in self._managers.ask_statuses()]
        databases = [database(server, self._standby.timeline) for server in self._standby.servers]
        answer = cluster.model_copy(
            update={
                "databases": sorted(databases, key=lambda each: _ROLE_ORDER.index(each.role)),
                "write_managers": write_managers,
                "degraded": degraded(databases, write_managers, age_s),
            }
        )
        return HttpResponse.json(answer)

    def read_catalog(self) -> None:
        """So that a manager that nobody has asked can answer once the catalog cannot be read any more."""
        asked_s = time.monotonic()
        with self._standby.reading() as session:
            self._last = stored_cluster(session), asked_s

    def _catalog(self, token: Token | None) -> tuple[Cluster, float | None]:
        """What the catalog says; the age of what it last said, if it cannot be read now."""

        def asked() -> Cluster:
            return Cluster.model_validate(self._write_manager.listed(routes.CLUSTER.name, Nothing(), token))

        asked_s = time.monotonic()
        try:
            cluster = self._metadata.read(stored_cluster, asked, token)
        except Unavailable:
            if self._last is None or token is not None:
                raise
            return self._last[0], asked_s - self._last[1]
        self._last = cluster, asked_s
        return cluster, None


def stored_cluster(session: Session) -> Cluster:
    return Cluster.model_validate(LISTINGS[routes.CLUSTER.name].read(session, Nothing()))


def write_manager(status: ManagerStatus | None) -> ClusterWriteManager:
    if status is None:
        return ClusterWriteManager(name=None, state="inactive", epoch=None)
    return ClusterWriteManager(
        name=status.name, state=status.state, epoch=status.epoch or None, problem=status.degraded
    )


def database(server: DatabaseServer, current: int) -> ClusterDatabase:
    state = server.state
    if state is None or not server.is_well or server.is_hanging:
        return ClusterDatabase(role=None, state="inactive", timeline=None, problem="does not answer")
    problem = state.problem(current)
    if server.is_replaced:
        return ClusterDatabase(role=None, state="inactive", timeline=state.timeline, problem=problem)
    role: Literal["primary", "standby"] = "primary" if state.is_primary else "standby"
    return ClusterDatabase(
        role=role,
        state="inactive" if server.is_detached else "active",
        timeline=state.timeline,
        problem=problem,
    )


def degraded(
    databases: Sequence[ClusterDatabase], write_managers: Sequence[ClusterWriteManager], catalog_age_s: float | None
) -> list[str]:
    """What does not work or would not survive the next failure, the worst first."""
    found: list[str] = []
    primaries = [each for each in databases if each.role == "primary"]
    if not primaries:
        found.append(
            "PostgreSQL has no primary: topics, registrations, consume and commits are refused until it has one; "
            "produce and fetch of topics in use go on"
        )
    found += [f"PostgreSQL primary: {each.problem}" for each in primaries if each.problem is not None]
    active = sorted((each for each in write_managers if each.state == "active"), key=lambda each: -(each.epoch or 0))
    if not found:  # else the read manager sees the cause itself
        found += [f"active write manager: {each.problem}" for each in active[:1] if each.problem is not None]
    if catalog_age_s is not None:
        found.append(
            f"the catalog cannot be read: brokers and read managers are as they were {catalog_age_s:.0f} s ago"
        )
    if not active:
        found.append("no write manager is active: writes are refused, but those of producers that are open")
    elif len(active) > 1:
        found += [
            f"{each.name or 'a write manager'} does not know that another one has taken over: it cannot reach "
            "PostgreSQL; it is not asked any more, and none stands by until it can"
            for each in active[1:]
        ]
    elif len(write_managers) > 1 and all(each.state != "standby" for each in write_managers):
        found.append("no write manager stands by: if the active one fails, writes are refused until it is back")
    found += [
        f"PostgreSQL {each.role or 'server'}: {each.problem}"
        for each in databases
        if each.role != "primary" and each.problem is not None
    ]
    return found
