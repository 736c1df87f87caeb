"""One stack for tests that break it; each test leaves it healed, or the next one does not start."""

import uuid
from collections.abc import Iterator

import pytest
import requests

from tests.calls import Calls
from tests.cluster import Cluster, running_cluster


@pytest.fixture(scope="session")
def whole_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("stack")) as cluster:
        yield cluster


@pytest.fixture
def cluster(whole_cluster: Cluster) -> Iterator[Cluster]:
    yield whole_cluster
    whole_cluster.heal()
    whole_cluster.delete_topics()
    whole_cluster.await_placement()


@pytest.fixture
def calls(cluster: Cluster) -> Iterator[Calls]:
    with requests.Session() as session:
        yield Calls(cluster.url, session)


@pytest.fixture
def topic_name() -> str:
    return f"t-{uuid.uuid4().hex[:12]}"
