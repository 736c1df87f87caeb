"""Where brokers and read managers say that they are: they are called there, so that must not be anywhere else."""

import ipaddress
import re
import socket
from collections.abc import Sequence

from myqueue.protocol.errors import InvalidRequest

MAX_CHARS = 300  # as much as is stored
# The host is a name, an IPv4 address or an IPv6 address in brackets; the load balancer takes nothing else either.
_ENDPOINT = re.compile(r"http://(?:([A-Za-z0-9._-]+)|\[([0-9A-Fa-f:.]+)\]):([0-9]{1,5})")
_MAX_PORT = 65535


class Networks:
    def __init__(self, networks: Sequence[str]) -> None:
        self._networks = [ipaddress.ip_network(network) for network in networks]

    def check_endpoint(self, endpoint: str) -> None:
        self._check(endpoint, "endpoint", "http://host:port")

    def check_data_address(self, address: str) -> None:
        self._check(f"http://{address}", "data_address", "host:port")

    def _check(self, endpoint: str, field: str, shape: str) -> None:
        if len(endpoint) > MAX_CHARS:
            raise InvalidRequest(f"{field}: longer than {MAX_CHARS} characters")
        found = _ENDPOINT.fullmatch(endpoint)
        if found is None or not 1 <= int(found[3]) <= _MAX_PORT:
            raise InvalidRequest(f"{field}: must be {shape}")
        host = found[1] or found[2]
        try:
            resolved = socket.getaddrinfo(host, int(found[3]), proto=socket.IPPROTO_TCP)
        except (OSError, UnicodeError):  # the latter for names with a part that is empty or too long
            raise InvalidRequest(f"{field}: {host} cannot be resolved") from None
        for *_, address in resolved:
            if not any(ipaddress.ip_address(address[0]) in network for network in self._networks):
                raise InvalidRequest(
                    f"{field}: lies outside the networks in which brokers and read managers may be; "
                    "the write manager's --broker-networks names them"
                )
