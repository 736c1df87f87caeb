"""One whole stack for all system tests, on a free port in a folder of its own.

Everything it needs comes with the packages, so a stack that does not come up is a failure, never a skip.
With MYQUEUE_TEST_URL the tests run against what answers there, and those that look inside a stack are deselected.
"""

import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import requests

from tests.calls import Calls
from tests.cluster import Cluster, running_cluster
from tests.jobs import Inside, Run

GIVEN_URL = os.environ.get("MYQUEUE_TEST_URL")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if GIVEN_URL is None:
        return
    inside = [item for item in items if isinstance(item, pytest.Function) and "new_stack" in item.fixturenames]
    config.hook.pytest_deselected(items=inside)
    items[:] = [item for item in items if item not in inside]


@dataclass(frozen=True)
class NewStack:
    cluster: Cluster
    first_listing: requests.Response  # of topics, before there was any


@pytest.fixture(scope="session")
def new_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewStack]:
    with running_cluster(tmp_path_factory.mktemp("stack")) as cluster:
        yield NewStack(cluster, requests.get(cluster.url + "/topics", timeout=10))


@pytest.fixture(scope="session")
def stack(new_stack: NewStack) -> Cluster:
    return new_stack.cluster


@pytest.fixture(scope="session")
def first_listing(new_stack: NewStack) -> requests.Response:
    return new_stack.first_listing


@pytest.fixture(scope="session")
def url(request: pytest.FixtureRequest) -> str:
    """All that most tests need to know; only those that name the stack itself are bound to one of their own."""
    if GIVEN_URL is not None:
        return GIVEN_URL
    stack: Cluster = request.getfixturevalue("stack")
    return stack.url


@pytest.fixture
def calls(url: str) -> Iterator[Calls]:
    with requests.Session() as session:
        yield Calls(url, session)


@pytest.fixture
def topic_name() -> str:
    """Tests share the stack, so each has a topic of its own."""
    return f"t-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def inside(stack: Cluster) -> Inside:
    return Inside(stack)


@pytest.fixture
def job() -> str:
    """As for topics."""
    return f"job_{uuid.uuid4().hex[:12]}"


@pytest.fixture
def run(calls: Calls, inside: Inside, job: str) -> Run:
    return Run(calls, inside, job)
