"""What processes of a Spark cluster get to know, and what the session on one is told."""

from pathlib import Path

import pytest

from spark.config import SparkFailure, load
from spark.session import configuration
from spark.standalone import java_options, master_options, without_secrets, worker_command

SECRET = "s" * 32


def test_no_secret_goes_to_executors() -> None:
    given = {"MYQUEUE_CLUSTER_SECRET": SECRET, "POSTGRES_PASSWORD": SECRET, "PATH": "/bin", "SPARK_NO_DAEMONIZE": "1"}
    assert without_secrets(given) == {"PATH": "/bin", "SPARK_NO_DAEMONIZE": "1"}
    told = configuration(load(master="spark://queue:7077", cluster_secret=SECRET))
    assert not any(SECRET in value for value in told.values())


def test_a_session_on_a_cluster() -> None:
    elsewhere = configuration(load(master="spark://queue:7077", executor_memory="2g"))
    assert elsewhere["spark.executor.memory"] == "2g"
    assert "spark.driver.host" not in elsewhere
    here = configuration(load(master="spark://127.0.0.1:7077"))
    assert here["spark.driver.host"] == "127.0.0.1"
    assert "spark.executor.memory" not in configuration(load(master="local[2]"))


def test_a_worker_needs_a_master() -> None:
    with pytest.raises(SparkFailure, match="spark://host:7077, not 'local'"):
        worker_command("local", "host", 1, "1g", 0)


def test_options_that_were_given_win() -> None:
    """Java uses the last one of a name."""
    given = "-Dspark.deploy.recoveryMode=ZOOKEEPER"
    options = java_options({"spark.deploy.recoveryMode": "FILESYSTEM", "spark.worker.dir": "a folder"}, given)
    assert options == f"-Dspark.deploy.recoveryMode=FILESYSTEM '-Dspark.worker.dir=a folder' {given}"
    assert java_options({}, "") == ""


def test_masters_that_share_a_folder_do_not_share_their_state() -> None:
    places = [("one", 7077), ("two", 7077), ("one", 7078)]
    states = {master_options(Path("shared"), *place)["spark.deploy.recoveryDirectory"] for place in places}
    assert len(states) == len(places)
