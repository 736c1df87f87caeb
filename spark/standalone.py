"""A Spark cluster of its own, from the same package: `python -m spark master` and `python -m spark worker`.

Both replace this process by Spark's. Executors inherit the environment of their worker, so it is reduced to what they
need: an executor gets the address of the cluster and grants with its tasks, and never sees a secret.
"""

import os
import shlex
import socket
from collections.abc import Mapping
from pathlib import Path

import pyspark

from spark.config import WRONG_USAGE, SparkFailure, SparkSettings
from spark.runtime import java_home

MASTER_PORT = 7077
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_DAEMON_MEMORY = "256m"  # of a master's or worker's own Java; executors have theirs
# How settings of this project begin, none of which executors get; what is Spark's or the system's stays.
_SECRETS = ("MYQUEUE_", "POSTGRES_", "REPLICATION_")
_RECOVERY_S = 30  # a master that starts again gives workers and drivers that it knew this long to answer
_EXECUTOR_LOG_BYTES, _EXECUTOR_LOGS = 5 * 1024 * 1024, 3


def default_host() -> str:
    return socket.gethostname()


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for processes of Spark's cluster: no setting of this project, among which are its secrets."""
    return {name: value for name, value in environment.items() if not name.startswith(_SECRETS)}


def master_options(folder: Path, host: str, port: int) -> dict[str, str]:
    """A master that starts again must know its applications: it would have their executors killed, and a driver never
    registers a second time, so its tasks would wait for ever.

    Another master must not take them over, and another version of Spark may not be able to read what is stored.
    """
    return {
        "spark.deploy.recoveryMode": "FILESYSTEM",
        "spark.deploy.recoveryDirectory": str(folder / f"master-{host}-{port}-{pyspark.__version__}"),
        "spark.deploy.recoveryTimeout": str(_RECOVERY_S),
    }


def worker_options() -> dict[str, str]:
    """Neither the logs of an application that runs for months nor what ended ones left may fill the disk."""
    return {
        "spark.worker.cleanup.enabled": "true",
        "spark.executor.logs.rolling.strategy": "size",
        "spark.executor.logs.rolling.maxSize": str(_EXECUTOR_LOG_BYTES),
        "spark.executor.logs.rolling.maxRetainedFiles": str(_EXECUTOR_LOGS),
    }


def java_options(options: Mapping[str, str], given: str) -> str:
    """As Spark's scripts take them. Java uses the last of a name, so `given` wins."""
    return " ".join([*(shlex.quote(f"-D{name}={value}") for name, value in options.items()), given]).strip()


def environment(settings: SparkSettings, host: str, port: int) -> dict[str, str]:
    """`port` is a master's; a worker does not use it."""
    home = Path(pyspark.__file__).parent
    of_master = java_options(master_options(settings.dir, host, port), os.environ.get("SPARK_MASTER_OPTS", ""))
    return {
        **without_secrets(os.environ),
        "SPARK_HOME": str(home),
        "JAVA_HOME": str(java_home(settings.java, settings.dir)),
        "SPARK_LOCAL_IP": host,  # the pages of Spark listen there too, and nowhere else
        "SPARK_DAEMON_MEMORY": os.environ.get("SPARK_DAEMON_MEMORY", _DAEMON_MEMORY),
        # The other way to submit applications authenticates nobody, and only takes Java.
        "SPARK_MASTER_OPTS": f"{of_master} -Dspark.master.rest.enabled=false",
        "SPARK_WORKER_OPTS": java_options(worker_options(), os.environ.get("SPARK_WORKER_OPTS", "")),
        "SPARK_WORKER_DIR": os.environ.get("SPARK_WORKER_DIR", str(settings.dir / "work")),
    }


def master_command(host: str, port: int, page_port: int) -> list[str]:
    return [_MASTER, "--host", host, "--port", str(port), "--webui-port", str(page_port)]


def worker_command(master: str, host: str, cores: int, memory: str, page_port: int) -> list[str]:
    if not master.startswith("spark://"):
        raise SparkFailure(f"a worker joins a master as spark://host:{MASTER_PORT}, not {master!r}", WRONG_USAGE)
    own = ["--host", host, "--webui-port", str(page_port), "--cores", str(cores), "--memory", memory]
    return [_WORKER, *own, master]


def run(settings: SparkSettings, host: str, command: list[str], port: int = MASTER_PORT) -> None:
    """Does not return."""
    own = environment(settings, host, port)
    program = str(Path(own["SPARK_HOME"]) / "bin" / "spark-class")
    os.execve(program, [program, *command], own)  # noqa: S606 no shell is wanted
