"""Every declared route is served by exactly one listener of its tier's process."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
import structlog

import broker.app
import read_manager.app
import write_manager.app
from broker.config import BrokerSettings
from myqueue.protocol import internal, routes
from myqueue.protocol.internal import InternalRoute
from myqueue.protocol.routes import ROUTES, Route
from read_manager.config import ReadManagerSettings
from service.lifecycle import Part
from service.listener import Listener
from write_manager.config import WriteManagerSettings

LOG = structlog.wrap_logger(None, wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
SECRET = "x" * 16
DATABASE = {"database_hosts": "127.0.0.1:1"}
ON_EVERY_PROCESS = (routes.HEALTHZ, routes.READYZ, routes.METRICS)
PAGES = {"docs_asset", "console_asset", "console_folder"}
BORROWED = {"read": {routes.REGISTER_CONSUMER.name, *PAGES}, "write": set(), "broker": set()}
DECLARED_INTERNAL = [value for value in vars(internal).values() if isinstance(value, InternalRoute)]

Build = Callable[[], tuple[Sequence[Listener], Sequence[Part]]]


def write_manager_listeners() -> tuple[Sequence[Listener], Sequence[Part]]:
    settings = WriteManagerSettings.model_validate({"cluster_secret": SECRET, **DATABASE})
    return write_manager.app.build(settings, LOG)


def read_manager_listeners() -> tuple[Sequence[Listener], Sequence[Part]]:
    settings = ReadManagerSettings.model_validate({"cluster_secret": SECRET, **DATABASE})
    return read_manager.app.build(settings, LOG)


def broker_listeners() -> tuple[Sequence[Listener], Sequence[Part]]:
    settings = BrokerSettings.model_validate(
        {
            "cluster_secret": SECRET,
            "port": 1,
            "raft_port": 2,
            "data_port": 3,
            "storage": "memory",
            "write_manager_urls": "http://127.0.0.1:1",
        }
    )
    return broker.app.build(settings, LOG)


BUILDS: dict[str, Build] = {
    "write": write_manager_listeners,
    "read": read_manager_listeners,
    "broker": broker_listeners,
}


def served(build: Build) -> list[list[Route | InternalRoute]]:
    """By listener."""

    async def play() -> list[list[Route | InternalRoute]]:
        listeners, parts = build()
        for part in reversed(parts):
            await asyncio.to_thread(part.stop)
        return [listener.router.routes for listener in listeners]

    return asyncio.run(play())


@pytest.mark.parametrize("tier", BUILDS)
def test_public_routes(tier: str) -> None:
    counted = Counter(
        route.name
        for listener in served(BUILDS[tier])
        for route in listener
        if isinstance(route, Route) and route not in ON_EVERY_PROCESS
    )
    expected = {route.name for route in ROUTES if route.tier == tier and route not in ON_EVERY_PROCESS}
    assert counted == Counter(expected | BORROWED[tier])


def test_internal_routes() -> None:
    counted = Counter(
        route
        for build in BUILDS.values()
        for listener in served(build)
        for route in listener
        if isinstance(route, InternalRoute)
    )
    assert counted == Counter(DECLARED_INTERNAL)


@pytest.mark.parametrize("tier", BUILDS)
def test_operations(tier: str) -> None:
    """The data plane is behind the load balancer and has none."""
    for listener in served(BUILDS[tier]):
        if routes.APPEND_BATCH not in listener:
            assert set(ON_EVERY_PROCESS) <= set(listener)
