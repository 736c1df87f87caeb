"""One whole stack and one Spark session for all tests of Spark: both take long to start."""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark.config import load
from spark.session import build
from tests.cluster import Cluster, running_cluster
from tests.spark.quick_java import QUICK_JAVA

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("stack")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def session(stack: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    # Spark's Python processes get their paths from the environment in which its Java was started.
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, (CHECKOUT, CHECKOUT / "client")))
    settings = load(url=stack.url, dir=tmp_path_factory.mktemp("spark"))
    session = build("tests", settings=settings, extra=QUICK_JAVA)
    yield session
    session.stop()


@pytest.fixture
def topic_name() -> str:
    """Tests share the stack, so each has a topic of its own."""
    return f"t-{uuid.uuid4().hex[:12]}"
