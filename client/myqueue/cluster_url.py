"""The URL of a cluster, as people write it, or by default."""

import os
import re
from urllib.parse import urlsplit

from myqueue.argument_checks import WrongType, WrongValue

URL_VARIABLE = "MYQUEUE_URL"
DEFAULT_URL = "http://localhost"
_USER = re.compile(r"(?<=//)[^/]*@|^[^/]*@")


def base_url(address: str | None = None, parameter: str = "url") -> str:
    """`http://host`, `https://host:8443/`, `host:8080` or `host`, as a URL without a trailing slash.

    None stands for what the variable MYQUEUE_URL says, or `http://localhost`. An error names where the address is from.
    """
    source = parameter
    if address is None:
        source = URL_VARIABLE
        address = os.environ.get(URL_VARIABLE) or DEFAULT_URL
    if not isinstance(address, str):
        raise WrongType(f"{source} must be a str such as {DEFAULT_URL!r}, or None, not {type(address).__name__}")
    try:
        return normalized_url(address)
    except ValueError as error:
        raise WrongValue(f"{source}: {error}") from None


def normalized_url(address: str) -> str:
    """Of an address that is given; its ValueError says what is wrong with it."""
    text = address.strip()
    if not text:
        raise ValueError(f"{address!r}: the address is empty")
    address = _USER.sub("", address)  # a password is not for the text of an error
    if "://" not in text:
        text = f"http://{text}"
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https"):
        raise ValueError(f"{address!r}: the address must start with http:// or https://")
    if not parts.hostname or any(character.isspace() for character in text):
        raise ValueError(f"{address!r}: the address names no host")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError(f"{address!r}: the address may hold a host, a port and a path, nothing else")
    try:
        _ = parts.port
    except ValueError:
        raise ValueError(f"{address!r}: the port must be a number from 0 to 65535") from None
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
