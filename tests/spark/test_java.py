"""The Java under the shared session is the one that was looked for; the packaged one runs the scheduler's tests."""

import pytest
from pyspark.sql import SparkSession

from spark.config import load
from spark.runtime import find_java
from spark.session import java_version

pytestmark = pytest.mark.timeout(300)  # the first test waits for the stack and Spark


def test_java_and_its_memory(session: SparkSession) -> None:
    assert java_version(session).split(".")[0] == str(find_java(load().java).version)
    machine = session.sparkContext._jvm
    assert machine is not None
    assert machine.java.lang.Runtime.getRuntime().maxMemory() <= 512 << 20
