"""RabbitMQ of the machine as a node of its own: HTTP publish by the management plugin, AMQP by pika."""

import base64
import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import requests

from benchmarks.load import request, run_load
from benchmarks.measurement import SIZES, Addresses, Figure, Measurement, Pace, Running
from benchmarks.server import free_ports, listens, server
from benchmarks.workload import CpuClock, produce_for, values_of
from stack.account import choose_account, make_folder, write_for
from stack.ports import HOST

SCRIPT = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")  # Debian's /usr/sbin one changes the user and needs root
USER = PASSWORD = "guest"  # of a new node; it may log in from this machine only
MEMORY_BYTES = 8 << 30  # Erlang reserves much more address space than it uses
TIMEOUT_S = 30.0
LOGIN = f"Authorization: Basic {base64.b64encode(f'{USER}:{PASSWORD}'.encode()).decode()}"
PERSISTENT = 2
FILL_PER_S = 10_000  # stored before consuming, for each second of it
HTTP_FILL_PER_S = 3000


class RabbitMq:
    key = "rabbitmq"
    title = "RabbitMQ"
    durability = "1 replica, durable queue, persistent messages; answered when routed, not when on disk"

    def missing(self) -> str | None:
        if _script() is None or shutil.which("epmd") is None:
            return "the Debian package rabbitmq-server"
        return None if find_spec("pika") is not None else "pika"

    @contextlib.contextmanager
    def running(self, folder: Path) -> Iterator[Running]:
        script, epmd = _script(), shutil.which("epmd")
        assert script is not None
        assert epmd is not None
        amqp, management, distribution, names = free_ports(4)
        account = choose_account()
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o711)
        home = make_folder(folder / "node", account)
        write_for(
            account,
            home / "rabbitmq.conf",
            f"listeners.tcp.1 = {HOST}:{amqp}\n"
            f"management.tcp.ip = {HOST}\nmanagement.tcp.port = {management}\n"
            "log.console = true\nlog.console.level = warning\nlog.file = false\n",
        )
        write_for(account, home / "enabled_plugins", "[rabbitmq_management].\n")
        env = {
            "HOME": str(home),
            "RUNNING_UNDER_SYSTEMD": "true",  # Erlang replaces the script, so that there is one process to end
            "ERL_EPMD_PORT": str(names),
            "ERL_EPMD_ADDRESS": HOST,
            "RABBITMQ_NODENAME": f"bench{os.getpid()}@localhost",
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-start_epmd false -kernel inet_dist_use_interface {127,0,0,1}",
            "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(home / "none"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(home / "mnesia"),
            "RABBITMQ_LOG_BASE": str(home / "log"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(home / "config"),
        }
        with (
            server([epmd, "-port", str(names), "-address", HOST], folder / "epmd", lambda: listens(names),
                   memory_bytes=1 << 30, account=account),
            server([script], home, lambda: _answers(management), memory_bytes=MEMORY_BYTES, env=env, account=account)
            as process,
        ):  # fmt: skip
            version = _api(management, "GET", "overview").json()["rabbitmq_version"]
            yield Running(
                version, {"amqp_port": str(amqp), "management_port": str(management)}, {"rabbitmq": process.pid}
            )

    def measurements(self) -> list[Measurement]:
        measurements = [
            Measurement(self.key, "single HTTP produce", "HTTP publish", size, publish_http) for size in SIZES
        ]
        for size in SIZES:
            measurements.append(Measurement(self.key, "produce", "AMQP, no confirms", size, publish_amqp))
            measurements.append(Measurement(self.key, "consume", "AMQP, automatic ack", size, consume_amqp))
        measurements.append(Measurement(self.key, "single HTTP consume", "HTTP get", 100, get_http))
        return measurements


def _script() -> Path | None:
    if SCRIPT.exists():
        return SCRIPT
    found = shutil.which("rabbitmq-server")
    return Path(found) if found else None


def _api(port: int | str, method: str, path: str, body: object = None) -> requests.Response:
    response = requests.request(
        method, f"http://{HOST}:{port}/api/{path}", auth=(USER, PASSWORD), json=body, timeout=TIMEOUT_S
    )
    response.raise_for_status()
    return response


def _answers(port: int) -> bool:
    try:
        return listens(port) and _api(port, "GET", "overview").ok
    except requests.RequestException:
        return False


def publish_http(addresses: Addresses, pace: Pace, size: int) -> Figure:
    port = addresses["management_port"]
    queue = f"bench-http-{size}"
    _api(port, "PUT", f"queues/%2f/{queue}", {"durable": True})
    bodies = [
        {
            "properties": {"delivery_mode": PERSISTENT},
            "routing_key": queue,
            "payload": f"{number:0{size}d}",
            "payload_encoding": "string",
        }
        for number in range(64)
    ]
    sends = [
        request(
            "POST", f"{HOST}:{port}", "/api/exchanges/%2f/amq.default/publish", json.dumps(body).encode(),
            LOGIN,
        )
        for body in bodies
    ]  # fmt: skip
    figure = run_load(HOST, int(port), sends, b'"routed":true', pace)
    _api(port, "DELETE", f"queues/%2f/{queue}")
    return figure


def get_http(addresses: Addresses, pace: Pace, size: int) -> Figure:
    """A message leaves the queue with the answer, as one that is consumed here is not given out again."""
    port = addresses["management_port"]
    queue = f"bench-http-get-{size}"
    values = [f"{number:0{size}d}".encode() for number in range(1000)]
    with _channel(addresses) as channel:
        _stored(channel, queue)
        wanted = round((pace.warm_up_s + pace.seconds) * HTTP_FILL_PER_S)
        for _ in range(0, wanted, len(values)):
            _publish(channel, queue, values)
        _await_stored(channel, queue, wanted)
    body = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}
    get = request("POST", f"{HOST}:{port}", f"/api/queues/%2f/{queue}/get", json.dumps(body).encode(), LOGIN)
    figure = run_load(HOST, int(port), [get], b'"payload"', pace)
    _api(port, "DELETE", f"queues/%2f/{queue}")
    return figure


@contextlib.contextmanager
def _channel(addresses: Addresses) -> Iterator[Any]:
    import pika

    connection = pika.BlockingConnection(
        pika.ConnectionParameters(HOST, int(addresses["amqp_port"]), heartbeat=0, socket_timeout=TIMEOUT_S)
    )
    try:
        yield connection.channel()
    finally:
        connection.close()


def _stored(channel: Any, queue: str) -> int:
    stored: int = channel.queue_declare(queue, durable=True).method.message_count
    return stored


def _await_stored(channel: Any, queue: str, sent: int) -> None:
    """Without confirms, the queue's length says whether all have arrived."""
    deadline = time.perf_counter() + TIMEOUT_S
    while (stored := _stored(channel, queue)) < sent:
        if time.perf_counter() > deadline:
            raise RuntimeError(f"sent {sent} messages but {stored} are stored")
        time.sleep(0.005)


def publish_amqp(addresses: Addresses, pace: Pace, size: int) -> Figure:
    queue = f"bench-amqp-{size}"
    values = values_of(size)[:1000]
    with _channel(addresses) as channel:
        _stored(channel, queue)
        channel.queue_purge(queue)
        sent = 0

        def send_chunk() -> int:
            nonlocal sent
            sent += _publish(channel, queue, values)
            return len(values)

        return produce_for(pace, send_chunk, lambda: _await_stored(channel, queue, sent))


def consume_amqp(addresses: Addresses, pace: Pace, size: int) -> Figure:
    """One pass: a queue deletes what was read."""
    queue = f"bench-amqp-{size}"
    values = values_of(size)
    read = read_bytes = 0
    with _channel(addresses) as channel:
        while (stored := _stored(channel, queue)) < pace.seconds * FILL_PER_S:
            _publish(channel, queue, values)
        cpu = CpuClock(pace.servers)
        began = time.perf_counter()
        for _, _, body in channel.consume(queue, auto_ack=True):
            read += 1
            read_bytes += len(body)
            if read == stored or (read % 1000 == 0 and time.perf_counter() - began >= pace.seconds):
                break
        seconds = time.perf_counter() - began
    if read_bytes != read * size:
        raise RuntimeError(f"{read} messages have {read_bytes} bytes")
    return Figure(read / seconds, "messages/s", seconds, read, cpu.details())


def _publish(channel: Any, queue: str, values: list[bytes]) -> int:
    import pika

    persistent = pika.BasicProperties(delivery_mode=PERSISTENT)
    for value in values:
        channel.basic_publish("", queue, value, persistent)
    return len(values)
