"""A real broker process, and a stand-in for the write manager's registration routes."""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import requests

from myqueue.protocol import batch as batches
from myqueue.protocol import headers
from myqueue.protocol.batch import Message
from myqueue.protocol.marks import Mark, encode_marks, key_hash, message_crc

T = TypeVar("T")

ROOT = Path(__file__).parents[2]
SECRET = "a secret of the tests"
MEMORY_BYTES = 4 << 30
TOPIC_ID = UUID("0d9f1a52-93a4-4a0e-8f1c-6f2f0a0f4c11")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def until(look: Callable[[], T | None], *, within_s: float, what: str) -> T:
    deadline_s = time.monotonic() + within_s
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < deadline_s, f"not within {within_s} s: {what}"
        time.sleep(0.02)


class Registrar:
    """Answers as the write manager does to brokers; keeps what they said."""

    def __init__(self) -> None:
        self.registrations: list[dict[str, Any]] = []
        self.heartbeats: list[dict[str, Any]] = []
        self.secrets: set[str | None] = set()
        self.knows_brokers = True
        registrar = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                registrar.secrets.add(self.headers[headers.SECRET])
                status, answer = registrar.answer(self.path, body)
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                """Not on the tests' output."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if path == "/internal/brokers":
            self.registrations.append(body)
            self.knows_brokers = True
            broker_id = body["broker_id"] or 41
            return 201, {"status": "success", "broker_id": broker_id, "heartbeat_interval_s": 0.2}
        if not self.knows_brokers:
            return 404, {"status": "failure", "error_code": 40406, "message": "broker not found", "retriable": False}
        self.heartbeats.append({"path": path, **body})
        return 200, {"status": "success"}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class BrokerProcess:
    def __init__(self, folder: Path, write_manager_url: str, *more: str) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._command = [
            *(sys.executable, "-m", "broker", "--port", str(self.port), "--data-dir", str(folder)),
            *("--write-manager-url", write_manager_url, "--log-level", "warning", *more),
        ]
        self._local = threading.local()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def http(self) -> requests.Session:
        """One for each thread."""
        if not hasattr(self._local, "session"):
            self._local.session = requests.Session()
            self._local.session.headers[headers.SECRET] = SECRET
        session: requests.Session = self._local.session
        return session

    def start(self, *, file_size_bytes: int | None = None) -> "BrokerProcess":
        def limit() -> None:
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
            if file_size_bytes is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (file_size_bytes, file_size_bytes))

        self._process = subprocess.Popen(
            self._command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'client'}", "MYQUEUE_CLUSTER_SECRET": SECRET},
            stdout=subprocess.DEVNULL,
            preexec_fn=limit,
        )
        until(self.answers, within_s=20, what="the broker answers")
        return self

    def answers(self) -> bool:
        assert self._process is None or self._process.poll() is None, "the broker ended"
        try:
            return requests.get(self.url + "/healthz", timeout=1).status_code == 200
        except requests.RequestException:
            return False

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(10)

    def stop(self) -> int:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(20)

    def exit_status(self, within_s: float) -> int:
        assert self._process is not None
        return self._process.wait(within_s)

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def path(self, partition_id: int = 0) -> str:
        return f"{self.url}/internal/topics/{TOPIC_ID}/partitions/{partition_id}"

    def create(self, partition_id: int = 0) -> requests.Response:
        return self.http.put(self.path(partition_id), json={"topic": "orders"}, timeout=5)

    def post(self, data: bytes, partition_id: int = 0, content_type: str = headers.BATCH_TYPE) -> requests.Response:
        return self.http.post(
            self.path(partition_id) + "/batches", data=data, headers={"Content-Type": content_type}, timeout=5
        )

    def append(self, values: Sequence[bytes], keys: Sequence[str] = (), partition_id: int = 0) -> requests.Response:
        return self.post(encoded(values, keys, partition_id), partition_id)

    def fetch(self, offset: int, limit: int = 1, partition_id: int = 0) -> requests.Response:
        return self.http.get(
            self.path(partition_id) + "/messages", params={"offset": offset, "limit": limit}, timeout=5
        )

    def read_all(self, partition_id: int = 0) -> list[bytes]:
        """Every value in order; offsets must follow each other without a gap."""
        values: list[bytes] = []
        while (answer := self.fetch(len(values), 1000, partition_id)).status_code == 200:
            header, body, _ = batches.split(answer.content)
            assert header.base_offset == len(values)
            values += [message.value for message in batches.messages_of(batches.validate(header, body))]
        assert answer.status_code == 204, answer.text
        return values


def encoded(values: Sequence[bytes], keys: Sequence[str] = (), partition_id: int = 0) -> bytes:
    messages = [Message(value) for value in values]
    marks = [
        Mark(position, 0, message_crc(messages[position]), key_hash("tests", "orders", key))
        for position, key in enumerate(keys)
    ]
    return batches.encode(TOPIC_ID, partition_id, messages) + encode_marks(marks)
