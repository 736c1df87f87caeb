"""Choose free ports, keep the ones of earlier starts, and name the process that holds a busy one."""

import errno
import random
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path

import psutil

from stack.config import StackError

HOST = "127.0.0.1"
LOWEST = 10_240


def can_bind(port: int) -> int:
    """0, or the errno that says why not."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            # With another listener on all addresses, bind succeeds but listen fails.
            probe.listen(1)
        except OSError as error:
            return error.errno or errno.EADDRINUSE
    return 0


def holder_of(port: int) -> str:
    """The process that listens on a port, as far as this user may see it."""
    for connection in psutil.net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port:
            if connection.pid is None:
                continue
            try:
                command = " ".join(psutil.Process(connection.pid).cmdline())
            except psutil.Error:
                command = "?"
            return f"pid {connection.pid}: {command}"
    return "a process of another user"


def choose_front_port(wanted: int | None) -> int:
    if wanted is None:
        wanted = 8080 if can_bind(80) in (errno.EACCES, errno.EPERM) else 80
    problem = can_bind(wanted)
    if problem in (errno.EACCES, errno.EPERM):
        raise StackError(f"port {wanted} may not be bound by this user; choose another with MYQUEUE_PORT", exit_code=2)
    if problem:
        raise StackError(
            f"port {wanted} is busy ({holder_of(wanted)}); end it or choose another with MYQUEUE_PORT", exit_code=2
        )
    return wanted


def ephemeral_floor() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 32_768


def choose_inner_ports(
    names: Iterable[str], remembered: Mapping[str, int], taken: int, reserved: Iterable[int] = ()
) -> dict[str, int]:
    """Keep remembered ports that are still free. New ones lie below the range of outgoing connections: such a
    connection could otherwise take a service's port while it restarts."""
    chosen: dict[str, int] = {}
    used = {taken, *reserved}
    for name in names:
        port = remembered.get(name)
        while port is None or port in used or can_bind(port):
            port = random.randrange(LOWEST, max(ephemeral_floor(), LOWEST + 4096))  # noqa: S311
        chosen[name] = port
        used.add(port)
    return chosen
