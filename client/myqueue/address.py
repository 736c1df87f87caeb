"""The address of a cluster as people write it."""

from urllib.parse import urlsplit


def base_url(address: str) -> str:
    """`http://host`, `https://host:8443/`, `host:8080` or `host`, as a URL without a trailing slash."""
    text = address.strip()
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
