"""A Spark cluster of its own, from the same package: `python -m spark master` and `python -m spark worker`.

Both replace this process by Spark's. Executors inherit the environment of their worker, so it is reduced to what they
need: an executor gets the address of the cluster and grants with its tasks, and never sees a secret.
"""

import os
import socket
from collections.abc import Mapping
from pathlib import Path

import pyspark

from spark.config import WRONG_USAGE, SparkFailure, SparkSettings
from spark.runtime import java_home, worker_python

MASTER_PORT = 7077
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_DAEMON_MEMORY = "256m"  # of a master's or worker's own Java; executors have theirs
# How settings of this project begin, none of which executors get; what is Spark's or the system's stays.
_SECRETS = ("MYQUEUE_", "POSTGRES_", "REPLICATION_")


def default_host() -> str:
    return socket.gethostname()


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for processes of Spark's cluster: no setting of this project, among which are its secrets."""
    return {name: value for name, value in environment.items() if not name.startswith(_SECRETS)}


def environment(settings: SparkSettings, host: str) -> dict[str, str]:
    home = Path(pyspark.__file__).parent
    python = str(worker_python(settings.dir))
    return {
        **without_secrets(os.environ),
        "SPARK_HOME": str(home),
        "JAVA_HOME": str(java_home(settings.java, settings.dir)),
        "SPARK_LOCAL_IP": host,  # the pages of Spark listen there too, and nowhere else
        "SPARK_DAEMON_MEMORY": os.environ.get("SPARK_DAEMON_MEMORY", _DAEMON_MEMORY),
        # The other way to submit applications authenticates nobody, and only takes Java.
        "SPARK_MASTER_OPTS": f"{os.environ.get('SPARK_MASTER_OPTS', '')} -Dspark.master.rest.enabled=false".strip(),
        "SPARK_WORKER_DIR": os.environ.get("SPARK_WORKER_DIR", str(settings.dir / "work")),
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", python),
    }


def master_command(host: str, port: int, page_port: int) -> list[str]:
    return [_MASTER, "--host", host, "--port", str(port), "--webui-port", str(page_port)]


def worker_command(master: str, host: str, cores: int, memory: str, page_port: int) -> list[str]:
    if not master.startswith("spark://"):
        raise SparkFailure(f"a worker joins a master as spark://host:{MASTER_PORT}, not {master!r}", WRONG_USAGE)
    own = ["--host", host, "--webui-port", str(page_port), "--cores", str(cores), "--memory", memory]
    return [_WORKER, *own, master]


def run(settings: SparkSettings, host: str, command: list[str]) -> None:
    """Does not return."""
    own = environment(settings, host)
    program = str(Path(own["SPARK_HOME"]) / "bin" / "spark-class")
    os.execve(program, [program, *command], own)  # noqa: S606 no shell is wanted
