"""Where others reach this process when it listens on every address of its machine."""

import ipaddress
import socket

EVERY_ADDRESS = frozenset({"", "0.0.0.0", "::"})  # noqa: S104


def hostname() -> str:
    return socket.gethostname()


def reachable_host(host: str) -> str:
    """The host that the process listens on; for every address, the machine's own one as its name resolves."""
    if host not in EVERY_ADDRESS:
        return host
    name = hostname()
    try:
        found = socket.getaddrinfo(name, None, family=socket.AF_INET, type=socket.SOCK_STREAM)
    except OSError:
        found = []
    addresses = [str(address[0]) for *_, address in found]
    own = next((address for address in addresses if not ipaddress.ip_address(address).is_loopback), None)
    if own is None:
        means = ", ".join(addresses) or "nothing"
        raise ValueError(
            f"must be given: the process listens on {host}, and its host name {name} means {means}, "
            "which is no address that others can reach"
        )
    return own
