"""The real PostgreSQL trio, the managers on it, a broker, nginx in front of stand-ins, and both event loops."""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import uvloop
from pydantic import SecretStr

from db.migrate import migrate
from db.primary import Primary
from db.settings import DatabaseAddress
from myqueue.protocol.errors import MetadataUnavailable
from stack.local import LocalStack
from tests.cluster import Cluster
from tests.integration.balanced_site import Site, running_site
from tests.integration.broker_process import BrokerProcess, Registrar
from tests.integration.peer_end import Run
from tests.waiting import until

TRIO = ("postgres-1", "postgres-2", "postgres-3")


def address(stack: LocalStack, first: str = "postgres-1", *, only: bool = False) -> DatabaseAddress:
    database = stack.database(first)
    hosts = database.hosts.split(",")
    return DatabaseAddress(
        hosts=hosts[:1] if only else hosts,
        user=database.user,
        password=SecretStr(database.password),
        name=database.name,
    )


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    with LocalStack(tmp_path_factory.mktemp("trio") / "home", services=TRIO, database_hang_s=0) as stack:
        yield stack


@pytest.fixture(scope="module")
def managed_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    folder = tmp_path_factory.mktemp("managed")
    with LocalStack(folder / "home", write_managers=1, database_hang_s=0) as stack:
        yield stack


@pytest.fixture
def managed(managed_stack: LocalStack) -> LocalStack:
    """The whole system, for tests that make the metadata tier misbehave; servers that they pause stay paused. A standby
    that was paused confirms writes a moment before the write manager can verify its own lease again."""
    Cluster(managed_stack).await_verified(within_s=20)
    return managed_stack


@pytest.fixture
def primary(trio: LocalStack) -> Iterator[Primary]:
    """Of a write manager that has taken over."""
    with closing(Primary(address(trio), "test", on_fenced=lambda: None)) as opened:
        migrate(opened.engine)
        until(lambda: taken_over(opened), within_s=20, what="the epoch is taken")
        yield opened


def taken_over(primary: Primary) -> bool:
    try:
        return bool(primary.take_over("test"))
    except MetadataUnavailable:
        return False


@pytest.fixture(scope="module")
def balancer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running_site(tmp_path_factory.mktemp("balancer")) as site:
        yield site


@pytest.fixture
def site(balancer: Site) -> Site:
    balancer.heal()
    return balancer


@pytest.fixture(params=["uvloop", "asyncio"])
def run(request: pytest.FixtureRequest) -> Run:
    return uvloop.run if request.param == "uvloop" else asyncio.run


@pytest.fixture
def registrar() -> Iterator[Registrar]:
    registrar = Registrar()
    yield registrar
    registrar.close()


@pytest.fixture
def broker(tmp_path: Path, registrar: Registrar) -> Iterator[BrokerProcess]:
    """One of the test's own, which it may stop."""
    broker = BrokerProcess(tmp_path / "data", registrar.url)
    broker.start()
    yield broker
    broker.close()
