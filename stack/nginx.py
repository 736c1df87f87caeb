"""nginx of the one-machine stack: the shared configuration plus the includes that name this machine's addresses."""

import grp
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stack.account import make_folder
from stack.binaries import Nginx
from stack.config import CHECKOUT, DEFAULT_MAX_CLIENT_CONNECTIONS
from stack.home import write_atomic
from stack.ports import HOST
from stack.process import Account, Command

SOURCE = CHECKOUT / "load_balancer"
FILES = (
    "nginx.conf",
    "brokers.js",
    "dns.js",
    "error_responses.js",
    "health.js",
    "managers.js",
    "upstream_files.js",
    "write_managers.js",
)
MEMORY_BYTES = 512 << 20
CACHE_BYTES = 256 << 20  # on disk, of ranges
TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


@dataclass(frozen=True)
class WriteManagerAddress:
    public: str  # host:port
    internal: str  # host:port


@dataclass(frozen=True)
class LoadBalancer:
    program: Nginx
    folder: Path
    log_folder: Path
    storage_root: Path  # a folder that the workers' user can enter
    account: Account | None
    port: int
    write_managers: Sequence[WriteManagerAddress]
    read_managers: Mapping[str, str]  # name -> host:port of the configured ones; others are found by their heartbeats
    brokers: Mapping[int, str]  # id -> host:port of their data planes; others are found by their heartbeats
    secret: str
    max_client_connections: int = DEFAULT_MAX_CLIENT_CONNECTIONS

    def write_configuration(self) -> None:
        self.folder.mkdir(exist_ok=True)
        for name in FILES:
            shutil.copyfile(SOURCE / name, self.folder / name)
        shutil.rmtree(self.upstream_files, ignore_errors=True)
        folders = (self._temporary, self.upstream_files, self._cache, *(self._temporary / name for name in TEMPORARY))
        for folder in folders:
            make_folder(folder, self.account)
        if self.read_managers:  # ready until they are checked
            (self.upstream_files / "readers").write_text(" ".join(sorted(self.read_managers.values())))
        (self.folder / "site-main.conf").write_text(self.main_include())
        (self.folder / "site-http.conf").write_text(self.http_include())
        (self.folder / "site-server.conf").write_text(self.server_include())
        (self.folder / "site-dns.conf").write_text(self.dns_include())
        write_atomic(self.folder / "site-secret.conf", variable("cluster_secret", self.secret) + "\n", mode=0o600)

    def command(self) -> Command:
        argv: list[str | Path] = [
            self.program.program,
            "-p",
            self.folder,
            "-c",
            self.folder / "nginx.conf",
            "-e",
            "stderr",
        ]
        env = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "TZ": "UTC"}
        return Command(argv, env, self.folder, MEMORY_BYTES)

    def test_command(self) -> Command:
        command = self.command()
        return Command([*command.argv, "-t", "-q"], command.env, command.cwd, command.memory_bytes)

    @property
    def _temporary(self) -> Path:
        """For bodies too large for memory. Workers do not run as root and may not be able to enter the home."""
        return self.storage_root / "nginx-temporary"

    @property
    def _cache(self) -> Path:
        return self._temporary / "ranges"

    @property
    def upstream_files(self) -> Path:
        """Of upstream_files.js, written by the workers."""
        return self._temporary / "upstreams"

    @property
    def _dns_address(self) -> str:
        """On the public port's number: what listens there listens on TCP."""
        return f"{HOST}:{self.port}"

    def main_include(self) -> str:
        lines = [f"load_module {quote(path)};" for path in self.program.modules]
        # No daemon: the runner supervises the master process as its child.
        lines += ["daemon off;", f"pid {quote(self.folder / 'nginx.pid')};", "error_log stderr warn;"]
        if self.account is not None:
            lines.append(f"user {self.account.name} {grp.getgrgid(self.account.gid).gr_name};")
        return "\n".join(lines) + "\n"

    def server_include(self) -> str:
        access_log = quote(self.log_folder / "nginx.access.log")
        lines = [
            f"listen {HOST}:{self.port} backlog=1024;",
            f"access_log {access_log} access buffer=64k flush=1s if=$observed;",
            f"limit_conn client_addresses {self.max_client_connections};",
        ]
        return "\n".join(lines) + "\n"

    def dns_include(self) -> str:
        return f"listen {self._dns_address} udp;\nset $upstream_files {quote(self.upstream_files)};\n"

    def http_include(self) -> str:
        pools = {f"read_{number}": name for number, name in enumerate(self.read_managers, start=1)}
        writes = {f"write_{number}": address for number, address in enumerate(self.write_managers, start=1)}
        text = [
            *(f"{kind}_temp_path {quote(self._temporary / kind)};" for kind in TEMPORARY),
            f"proxy_cache_path {quote(self._cache)} levels=2 keys_zone=ranges:2m max_size={CACHE_BYTES} inactive=10m"
            " use_temp_path=off;",
            variable("read_managers", " ".join(f"{pool}={self.read_managers[name]}" for pool, name in pools.items())),
            variable("read_fallback", ""),
            variable("write_managers", " ".join(f"{pool}={one.internal}" for pool, one in writes.items())),
            variable("data_pools", " ".join(f"{number}={address}" for number, address in self.brokers.items())),
            variable("upstream_files", str(self.upstream_files)),
            declared_brokers(self.brokers),
            *(upstream(pool, [one.public]) for pool, one in writes.items()),
            ready_readers(self._dns_address),
            *(upstream(f"data_{number}", [address]) for number, address in self.brokers.items()),
            *(upstream(pool, failover_order(self.read_managers, name)) for pool, name in pools.items()),
        ]
        return "\n".join(text) + "\n"


def failover_order(managers: Mapping[str, str], first: str) -> list[str]:
    """The pool's own manager first; a read that fails there is retried at the others."""
    return [managers[first], *(address for name, address in managers.items() if name != first)]


def upstream(name: str, addresses: list[str]) -> str:
    # max_fails=0: health.js alone decides which managers get requests.
    servers = [
        f"server {addresses[0]} max_fails=0;",
        *(f"server {address} max_fails=0 backup;" for address in addresses[1:]),
    ]
    return upstream_block(name, servers)


def ready_readers(dns_address: str) -> str:
    """The upstream `read`: dns.js names its servers."""
    return upstream_block(
        "read",
        [
            f"resolver {dns_address} ipv6=off;",
            "resolver_timeout 1s;",
            "server read.myqueue service=http resolve max_fails=0;",
        ],
    )


def upstream_block(name: str, servers: list[str]) -> str:
    # Shorter than the managers' idle timeout, so that no request is sent on a connection that is being closed.
    kept = ["keepalive 64;", "keepalive_timeout 5s;", "keepalive_requests 100000;"]
    body = "\n".join(f"    {line}" for line in [f"zone {name} 128k;", *servers, *kept])
    return f"upstream {name} {{\n{body}\n}}"


def declared_brokers(brokers: Mapping[int, str]) -> str:
    names = "".join(f" {number} data_{number};" for number in brokers)
    return f'map $broker_id $declared_broker {{ default "";{names} }}'


def variable(name: str, value: str) -> str:
    return f'map "" ${name} {{ default {quote(value)}; }}'


def quote(value: object) -> str:
    text = os.fspath(value) if isinstance(value, Path) else str(value)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
