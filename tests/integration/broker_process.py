"""A real broker process, and a stand-in for the write manager's registration routes."""

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import requests

from myqueue.protocol import batch as batches
from myqueue.protocol import errors, http_headers, internal
from myqueue.protocol.batch import Message
from myqueue.protocol.dedup_records import DedupRecord, encode_dedup_records, key_hash, message_crc
from myqueue.protocol.grant import READ, WRITE, issue
from stack.local import free_port
from tests.stored_files import read_state, while_written
from tests.waiting import until

T = TypeVar("T")

ROOT = Path(__file__).parents[2]
SECRET = "a secret of the tests"
MEMORY_BYTES = 4 << 30
GIVEN_ID = 41
PAUSE_AT_MOST_S = 20.0
TOPIC_ID = UUID("0d9f1a52-93a4-4a0e-8f1c-6f2f0a0f4c11")


class Registrar:
    """Answers as the write manager does to brokers; keeps what they said."""

    def __init__(self) -> None:
        self.registrations: list[dict[str, Any]] = []
        self.heartbeats: list[dict[str, Any]] = []
        self.secrets: set[str | None] = set()
        self.knows_brokers = True
        self.epoch: int | None = 1  # None while it is the standby
        self.answering = threading.Event()  # while it is not set, it answers nothing, as if it were paused
        self.answering.set()
        self.is_dead = False
        self.stale: set[str] = set()  # incarnations of which it knows a later copy
        self.names_epoch = False  # in its answer to a registration; write managers of older releases do not
        self.peers: dict[int, str] = {}
        self.reports: dict[int, dict[int, dict[str, Any]]] = {}  # by broker and partition, as last reported
        registrar = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                registrar.secrets.add(self.headers[http_headers.SECRET])
                if registrar.epoch is None:
                    refused = errors.StandbyManager()
                    self.reply(refused.http_status, refused.to_body(None))
                else:
                    self.reply(*registrar.answer(self.path, body))

            def do_GET(self) -> None:
                self.reply(200, {"active": registrar.epoch is not None, "epoch": registrar.epoch})

            def reply(self, status: int, answer: dict[str, Any]) -> None:
                registrar.answering.wait(PAUSE_AT_MOST_S)
                if registrar.is_dead:
                    self.close_connection = True
                    return
                data = json.dumps(answer).encode()
                self.send_response(status)
                if registrar.epoch is not None:
                    self.send_header(http_headers.EPOCH, str(registrar.epoch))
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                """Not on the tests' output."""

        class Server(ThreadingHTTPServer):
            def handle_error(self, request: object, client_address: object) -> None:
                """A broker that is killed in the middle of a heartbeat is part of the play."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if path == "/internal/brokers":
            self.registrations.append(body)
            if body["incarnation"] in self.stale:
                refuted = errors.StaleDataFolder(details={"starts": 9, "sequence": 900})
                return refuted.http_status, refuted.to_body(None)
            self.knows_brokers = True
            broker_id = body["broker_id"] or GIVEN_ID
            self.peers[broker_id] = body["raft_address"]
            self.reports[broker_id] = {report["partition_id"]: report for report in body["partitions"]}
            answer = {"status": "success", "broker_id": broker_id, "heartbeat_interval_s": 0.2, **self.shared()}
            return 201, {**answer, "epoch": self.epoch} if self.names_epoch else answer
        if not self.knows_brokers:
            return 404, {"status": "failure", "error_code": 40406, "message": "broker not found", "retriable": False}
        self.heartbeats.append({"path": path, **body})
        reports = self.reports.setdefault(int(path.split("/")[3]), {})
        reports.update({report["partition_id"]: report for report in body["partitions"]})
        return 200, {"status": "success", **self.shared()}

    def shared(self) -> dict[str, Any]:
        peers = [{"broker_id": broker_id, "raft_address": address} for broker_id, address in self.peers.items()]
        return {"peers": peers, "clock_ms": time.time_ns() // 1_000_000}

    def die(self) -> None:
        """No connection is accepted any more; those that are open end without an answer."""
        self.is_dead = True
        self.close()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@dataclass(frozen=True)
class AppendAnswer:
    """A broker's answer to one batch of a call."""

    status_code: int
    body: dict[str, Any]

    def json(self) -> dict[str, Any]:
        return self.body

    @property
    def text(self) -> str:
        return str(self.body)


class BrokerProcess:
    def __init__(
        self,
        folder: Path,
        write_manager_urls: str,
        *more: str,
        broker_id: int | None = None,
        module: str = "broker",
    ) -> None:
        self.folder = folder
        self.broker_id = broker_id or GIVEN_ID
        self.topic_id = TOPIC_ID
        if broker_id is not None:
            more = ("--broker-id", str(broker_id), *more)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.data_port = free_port()
        self._command = [
            *(sys.executable, "-m", module, "--port", str(self.port), "--raft-port", str(free_port())),
            *("--data-port", str(self.data_port)),
            *("--data-dir", str(folder), "--write-manager-urls", write_manager_urls, "--log-level", "warning", *more),
        ]
        self._local = threading.local()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def http(self) -> requests.Session:
        """One for each thread."""
        if not hasattr(self._local, "session"):
            self._local.session = requests.Session()
            self._local.session.headers[http_headers.SECRET] = SECRET
        session: requests.Session = self._local.session
        return session

    def start(self, *, file_size_bytes: int | None = None, wait: bool = True) -> "BrokerProcess":
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
        if wait:
            self.await_answer()
        return self

    def await_answer(self) -> None:
        until(self.answers, within_s=60, what="the broker answers")

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

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def limit_file_size(self, size_bytes: int) -> None:
        """From now on: writes beyond it fail."""
        assert self._process is not None
        resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (size_bytes, resource.RLIM_INFINITY))

    def exit_status(self, within_s: float) -> int:
        assert self._process is not None
        return self._process.wait(within_s)

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def data_path(self, partition_id: int = 0, broker_id: int | None = None) -> str:
        """Of the data plane, where a grant is needed."""
        place = f"/v1/brokers/{broker_id or self.broker_id}/topics/{self.topic_id}/partitions/{partition_id}/batches"
        return f"http://127.0.0.1:{self.data_port}{place}"

    def grant(self, rights: int = READ | WRITE, valid_s: float = 60, topic_id: UUID | None = None) -> dict[str, str]:
        expires_ms = time.time_ns() // 1_000_000 + int(valid_s * 1000)
        return {http_headers.GRANT: issue(SECRET, topic_id or self.topic_id, rights, expires_ms)}

    def path(self, partition_id: int = 0) -> str:
        return f"{self.url}/internal/topics/{self.topic_id}/partitions/{partition_id}"

    def create(
        self, partition_id: int = 0, founders: list[dict[str, Any]] | None = None, **settings: int | None
    ) -> requests.Response:
        """On its own unless others are named."""
        spec = {
            "topic": "orders",
            "founders": founders or [{"broker_id": self.broker_id, "incarnation": self.incarnation()}],
            "retention_ms": None,
            "retention_bytes": None,
            **settings,
        }

        def put() -> requests.Response | None:
            answer = self.http.put(self.path(partition_id), json=spec, timeout=5)
            return None if answer.status_code == 503 else answer  # before it is registered it has no id

        return until(put, within_s=20, what="the partition is made")

    def incarnation(self) -> str:
        return while_written(lambda: read_state(self.folder)).values["incarnation"]

    def offsets(self, partition_id: int = 0) -> dict[str, Any] | None:
        """None unless it leads."""
        asked = {"partitions": [{"topic_id": str(self.topic_id), "partition_id": partition_id}], "timestamp": None}
        answer = self.http.post(self.url + "/internal/offsets", json=asked, timeout=5)
        found: dict[str, Any] | None = answer.json()["offsets"][0]
        return found

    def await_lead(self, partition_id: int = 0) -> None:
        until(lambda: self.offsets(partition_id), within_s=20, what="the broker leads")

    def post(self, data: bytes, content_type: str = http_headers.BATCH_TYPE) -> "AppendAnswer":
        """A batch and its marks, in a call of their own."""
        answer = self.http.post(
            self.url + internal.APPEND.path,
            data=internal.APPEND_ITEM.pack(len(data)) + data,
            headers={"Content-Type": content_type},
            timeout=5,
        )
        body = answer.json()
        if answer.status_code != 200:
            return AppendAnswer(answer.status_code, body)
        (answered,) = body["answers"]
        if "error" not in answered:
            return AppendAnswer(200, answered)
        return AppendAnswer(errors.BY_CODE[answered["error"]["error_code"]].http_status, answered["error"])

    def append(self, values: Sequence[bytes], keys: Sequence[str] = (), partition_id: int = 0) -> "AppendAnswer":
        return self.post(encoded(values, keys, partition_id, self.topic_id))

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


def encoded(
    values: Sequence[bytes], keys: Sequence[str] = (), partition_id: int = 0, topic_id: UUID = TOPIC_ID
) -> bytes:
    messages = [Message(value) for value in values]
    marks = [
        DedupRecord(position, 0, message_crc(messages[position]), key_hash("tests", "orders", key))
        for position, key in enumerate(keys)
    ]
    return batches.encode(topic_id, partition_id, messages) + encode_dedup_records(marks)
