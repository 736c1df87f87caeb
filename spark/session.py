"""The Spark session of this project: small, quiet, in UTC, and with the data source `myqueue` registered."""

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from myqueue.spark import register
from spark import fork_client, fork_server
from spark.config import SparkSettings, load
from spark.runtime import java_home, worker_python

_LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")


def configuration(settings: SparkSettings) -> dict[str, str]:
    found = {
        "spark.driver.memory": settings.driver_memory,
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": (settings.dir / "warehouse").as_uri(),
        # Unix sockets between Java and Python: cheaper than TCP, and no port to wait for.
        "spark.python.unix.domain.socket.enabled": "true",
        # Jobs end in small tables; hundreds of tiny tasks would cost more than the work.
        "spark.sql.shuffle.partitions": "4",
    }
    if not settings.master.startswith("local"):
        found["spark.executor.memory"] = settings.executor_memory
    if is_on_this_machine(settings.master):
        found |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        found["spark.python.daemon.module"] = "spark.worker_daemon"  # `worker_python` finds this package
    return found


def is_on_this_machine(master: str) -> bool:
    return master.startswith("local") or urlsplit(master).hostname in ("127.0.0.1", "localhost")


def build(app: str, *, settings: SparkSettings | None = None, extra: Mapping[str, str] | None = None) -> SparkSession:
    """The session of this process. The first call starts its Java; `extra` is additional Spark configuration."""
    chosen = load() if settings is None else settings
    if is_on_this_machine(chosen.master):
        # Spark starts some Python processes as the driver's and some as workers'.
        for name in ("PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON"):
            os.environ[name] = str(worker_python(chosen.dir))
    # Asked by the driver's own Python programs, with any master, where PYSPARK_PYTHON is such a program.
    os.environ[fork_client.ADDRESS] = fork_server.start()
    builder = SparkSession.builder.appName(app).master(chosen.master)
    for name, value in {**configuration(chosen), **(extra or {})}.items():
        builder = builder.config(name, value)
    with _java_home(java_home(chosen.java, chosen.dir)):
        session = builder.getOrCreate()
    register(session)
    # An error in a callback is raised where the query is awaited; do not log it here again.
    logging.getLogger("py4j.clientserver").setLevel(logging.CRITICAL)
    return session


def java_version(session: SparkSession) -> str:
    machine = session.sparkContext._jvm
    assert machine is not None
    return str(machine.java.lang.System.getProperty("java.version"))


@contextmanager
def _java_home(home: Path) -> Iterator[None]:
    """Set only while Spark starts: later child processes must find their own Java."""
    before = os.environ.get("JAVA_HOME")
    os.environ["JAVA_HOME"] = str(home)
    try:
        yield
    finally:
        if before is None:
            del os.environ["JAVA_HOME"]
        else:
            os.environ["JAVA_HOME"] = before


@contextmanager
def one_session(app: str, settings: SparkSettings) -> Iterator[Callable[[], SparkSession]]:
    """Builds the session on first use, and stops it in the end."""
    built: list[SparkSession] = []

    def session() -> SparkSession:
        if not built:
            built.append(build(app, settings=settings))
        return built[0]

    try:
        yield session
    finally:
        for each in built:
            # Without its Java there is nothing to stop.
            with suppress(Py4JError, OSError):
                each.stop()
