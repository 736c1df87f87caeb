"""nginx and its scripts, for real, in front of stand-in managers and brokers."""

import json
import resource
import shutil
import socket
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import requests

from myqueue.protocol.errors import BY_CODE
from stack.account import can_reach, choose_account, prepare_shelter
from stack.binaries import find_nginx
from stack.config import DEFAULT_MAX_CLIENT_CONNECTIONS
from stack.local import free_port
from stack.nginx import MEMORY_BYTES, LoadBalancer, WriteManagerAddress
from tests.integration.stand_in_manager import StandInManager
from tests.waiting import until

SECRET = "the-secret-of-this-cluster"
CHECKED_S = 5.0 + 2.0 + 3.0  # between two checks, for one, and the machine may be busy
NEXT_LISTING_S = 1.5  # nginx asks the write manager every second
SETTLED_S = 10.0  # nginx's own upstream has had the ready read managers for a while, and the machine may be busy
RETURN_S = 3.0  # a manager that is back is found within a second, and the machine may be busy
LISTED_S = 10.0  # what needs two of nginx's checks, one after the other: such as a list, and then who is ready


class Site:
    def __init__(self, url: str, write: StandInManager, reads: list[StandInManager], folder: Path) -> None:
        self.url = url
        self.port = int(url.rpartition(":")[2])
        self.write = write
        self.reads = reads
        self.internal = StandInManager("internal")  # the write manager's other listener
        self.standby = StandInManager("write-2")  # its public listener is closed until it is active
        self.standby_internal = StandInManager("internal-2")
        self.brokers = {number: StandInManager(f"broker-{number}") for number in (1, 2)}
        self.access_log = folder / "nginx.access.log"
        self.log = folder / "nginx.log"
        self.upstream_files = folder

    @property
    def managers(self) -> list[StandInManager]:
        return [self.write, *self.reads]

    @property
    def servers(self) -> list[StandInManager]:
        return [*self.managers, *self.internals, *self.brokers.values()]

    @property
    def internals(self) -> list[StandInManager]:
        return [self.internal, self.standby_internal]

    def place(self, brokers: dict[int, StandInManager], reads: list[StandInManager]) -> None:
        """What the write manager says from now on about brokers and read managers."""
        rows = [
            {"broker_id": number, "data_address": server.address, "active": True} for number, server in brokers.items()
        ]
        managers = [{"name": server.name, "endpoint": f"http://{server.address}"} for server in reads]
        self.listing = {"status": "success", "brokers": rows, "managers": managers}
        self.activate(1)

    def activate(self, number: int | None, epoch: int = 1) -> None:
        """Which write manager says from now on that it is the active one; the other one, that it is the standby."""
        for place, server in enumerate(self.internals, start=1):
            status = {"active": place == number, "epoch": epoch if place == number else None}
            server.behaviour.body = json.dumps({**self.listing, **status}).encode()

    def take_over(self, epoch: int = 2) -> None:
        """The standby is active now."""
        self.standby.reset()
        self.activate(2, epoch)

    def place_brokers(self, servers: dict[int, StandInManager]) -> None:
        self.place(servers, self.reads)

    def place_reads(self, servers: list[StandInManager]) -> None:
        self.place(self.brokers, servers)

    def request(self, method: str, path: str, **more: object) -> requests.Response:
        return requests.request(method, self.url + path, timeout=40, **more)  # type: ignore[arg-type]

    def raw(self, data: bytes, timeout_s: float = 5.0) -> bytes:
        """What comes back until the server closes or is silent."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout_s) as connection:
            connection.sendall(data)
            answer = b""
            try:
                while chunk := connection.recv(65536):
                    answer += chunk
            except (TimeoutError, ConnectionResetError):
                return answer
            return answer

    def reached(self) -> int:
        return sum(len(server.received) for server in self.servers if server not in self.internals)

    def who_answers(self, count: int) -> list[str]:
        return [self.request("GET", "/topics").text for _ in range(count)]

    def await_settled(self, reads: Sequence[StandInManager]) -> None:
        """Requests go to nginx's own upstreams, no script chooses any more."""
        addresses = " ".join(sorted(server.address for server in reads))

        def settled() -> bool:
            readers = self.upstream_files / "readers"
            flags = ("read", "wait", "write", "brokers")
            return (
                readers.exists()
                and readers.read_text() == addresses
                and all((self.upstream_files / flag).exists() for flag in flags)
            )

        until(settled, within_s=SETTLED_S, what="nginx's own upstreams take the requests")

    def heal(self) -> None:
        """All servers well, and nginx knows it."""
        for server in self.servers:
            server.reset()
        self.standby.stop()
        self.standby.received.clear()
        self.place_brokers(self.brokers)
        until(
            lambda: set(self.who_answers(2)) == {"read-1", "read-2"} and self.request("POST", "/x").status_code == 200
        )
        until(lambda: all(self.at_broker(number).text == f"broker-{number}" for number in self.brokers))
        until(lambda: self.at_broker(9).status_code == 404)  # before nginx has asked it cannot say so
        self.await_settled(self.reads)
        for server in self.servers:
            server.received.clear()

    def at_broker(self, number: int, method: str = "GET", **more: object) -> requests.Response:
        return self.request(method, f"/v1/brokers/{number}/topics/x/partitions/0/batches", **more)


@contextmanager
def running_nginx(
    folder: Path,
    *,
    port: int,
    write_managers: Sequence[tuple[StandInManager, StandInManager]],  # public and internal listeners
    reads: Iterable[StandInManager] = (),
    brokers: Mapping[int, StandInManager] | None = None,
    max_client_connections: int = DEFAULT_MAX_CLIENT_CONNECTIONS,
    prefix: Sequence[str] = (),
    resolver: str | None = None,
) -> Iterator[LoadBalancer]:
    """`prefix`: what the command line begins with, such as another network namespace. `resolver`: as in containers."""
    account = choose_account()
    root = folder if can_reach(folder, account) else prepare_shelter(folder)
    balancer = LoadBalancer(
        program=find_nginx(use_system=False),
        folder=folder / "nginx",
        log_folder=folder,
        storage_root=root,
        account=account,
        port=port,
        write_managers=[WriteManagerAddress(named(public), internal.address) for public, internal in write_managers],
        read_managers={manager.name: manager.address for manager in reads},
        brokers={number: server.address for number, server in (brokers or {}).items()},
        secret=SECRET,
        max_client_connections=max_client_connections,
    )
    balancer.write_configuration()
    if resolver is not None:
        with (balancer.folder / "site-http.conf").open("a") as file:
            file.write(f"resolver {resolver} valid=1s ipv6=off;\nresolver_timeout 1s;\n")
    with (folder / "nginx.log").open("wb") as output:
        argv = [*prefix, *(str(part) for part in balancer.command().argv)]
        process = subprocess.Popen(argv, stdout=output, stderr=output)
    resource.prlimit(process.pid, resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    try:
        yield balancer
    finally:
        process.terminate()
        process.wait(10)
        if root != folder:
            shutil.rmtree(root)


@contextmanager
def running_site(folder: Path, max_client_connections: int = DEFAULT_MAX_CLIENT_CONNECTIONS) -> Iterator[Site]:
    write, reads = StandInManager("write"), [StandInManager("read-1"), StandInManager("read-2")]
    port = free_port()
    site = Site(f"http://127.0.0.1:{port}", write, reads, folder)
    for server in site.servers:
        server.start()
    site.place_brokers(site.brokers)
    try:
        with running_nginx(
            folder,
            port=port,
            write_managers=[(write, site.internal), (site.standby, site.standby_internal)],
            reads=reads,
            brokers=site.brokers,
            max_client_connections=max_client_connections,
        ) as balancer:
            site.upstream_files = balancer.upstream_files
            until(lambda: site.raw(b"GET /internal HTTP/1.0\r\n\r\n") != b"" if listens(port) else False)
            yield site
    finally:
        for server in [*site.servers, site.standby]:
            server.stop()


def named(manager: StandInManager) -> str:
    """Not as nginx prints the address: in containers write managers have names, and no script may compare the two."""
    return manager.address.replace("127.0.0.1:", "127.1:")


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def assert_failure(response: requests.Response, code: int, outcome: str | None) -> None:
    body = response.json()
    error = BY_CODE[code]
    assert response.status_code == error.http_status
    assert response.headers["Content-Type"] == "application/json"
    assert body["status"] == "failure"
    assert body["error_code"] == code
    assert body["retriable"] == error.retriable
    assert body.get("outcome") == outcome
    assert body["request_id"] == response.headers["X-Request-Id"]
    assert (response.headers.get("Retry-After") == "1") == (error.http_status in (429, 502, 503, 504))
