"""Opens connections, and says why there is none: refused, an unknown host, or a timeout.

The library, the command line and its doctor use the same words.
"""

import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from ipaddress import ip_address
from typing import Any, Literal, NamedTuple, TypeVar
from urllib.parse import urlsplit

T = TypeVar("T")

SHORTEST_S = 0.05  # for one address
Reason = Literal["refused", "unknown host", "timeout", "failed"]


class SocketAddress(NamedTuple):
    family: int
    address: tuple[Any, ...]  # of an internet address: its host and port first


class ConnectFailed(Exception):
    """`addresses` are those of the host, none if its name was not resolved."""

    def __init__(self, reason: Reason, message: str, addresses: Sequence[SocketAddress] = ()) -> None:
        super().__init__(message)
        self.reason = reason
        self.addresses = addresses


def host_and_port(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def resolve(host: str, port: int, timeout_s: float) -> list[SocketAddress]:
    """The host's addresses, the best one first; raises ConnectFailed."""

    def look_up() -> list[SocketAddress]:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return [SocketAddress(family, address) for family, _, _, _, address in found]

    try:
        return look_up() if is_address(host) else _within(timeout_s, look_up)
    except TimeoutError:
        raise ConnectFailed("timeout", f"timed out: {host!r} was not resolved within {timeout_s:.1f} s") from None
    except (UnicodeError, OSError) as error:
        raise unresolved(host, error) from error


def unresolved(host: str, error: Exception) -> ConnectFailed:
    """Why a look-up of the host's addresses failed."""
    if isinstance(error, UnicodeError):
        return ConnectFailed("unknown host", f"unknown host {host!r}: hosts cannot have such a name")
    if isinstance(error, socket.gaierror):
        return ConnectFailed("unknown host", f"unknown host {host!r}: {_lower(error)}")
    return ConnectFailed("failed", f"{host!r} was not resolved: {_lower(error)}")


def connect(host: str, port: int, timeout_s: float) -> socket.socket:
    """A connected socket, to the first of the host's addresses that takes the connection; raises ConnectFailed."""
    deadline = time.monotonic() + timeout_s
    addresses = resolve(host, port, timeout_s)
    failed: OSError | None = None
    for tried, address in enumerate(addresses):
        share_s = (deadline - time.monotonic()) / (len(addresses) - tried)
        try:
            return _connected(address, max(SHORTEST_S, share_s))
        except OSError as error:
            failed = error
    raise unconnected(failed, timeout_s, addresses) from failed


def unconnected(failed: OSError | None, timeout_s: float, addresses: Sequence[SocketAddress] = ()) -> ConnectFailed:
    """Why the last of the host's addresses did not take the connection."""
    if isinstance(failed, ConnectionRefusedError):
        return ConnectFailed("refused", "connection refused", addresses)
    if isinstance(failed, TimeoutError):
        return ConnectFailed("timeout", f"timed out after {timeout_s:.1f} s", addresses)
    return ConnectFailed("failed", _lower(failed), addresses)


def _connected(address: SocketAddress, timeout_s: float) -> socket.socket:
    sock = socket.socket(address.family, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout_s)
        sock.connect(address.address)
    except BaseException:
        sock.close()
        raise
    return sock


def foreign_server(status: int, server: str, content_type: str) -> str:
    """What is said of an HTTP response that no server of myqueue sends."""
    who = f"{server or 'a server without name'}, HTTP {status}, {content_type or 'no content type'}"
    return f"what answers is not myqueue ({who})"


def is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _within(seconds: float, call: Callable[[], T]) -> T:
    """Name resolution has no timeout of its own."""
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(call())
        except Exception as error:  # noqa: BLE001 - the waiting thread raises it
            result.set_exception(error)

    try:
        threading.Thread(target=run, name="myqueue-resolve", daemon=True).start()
    except RuntimeError:  # the interpreter ends: a last commit may still need a connection
        return call()
    return result.result(seconds)


def _lower(error: Exception | None) -> str:
    return (
        "no address"
        if error is None
        else (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()
    )
