"""Cross-origin requests: a page of another site must not change anything here through the browser of whoever opens it.

Browsers say where a request comes from, and a page cannot change that: by `Sec-Fetch-Site` to https and localhost, by
`Origin` to other servers. Programs send neither, and are not affected.
"""

from myqueue.protocol.errors import CrossOrigin
from service.http_messages import RequestHeaders

_OWN_SITES = frozenset({"same-origin", "none"})  # none: the address bar, a bookmark
_MAX_SHOWN = 200


def check_origin(headers: RequestHeaders) -> CrossOrigin | None:
    """A refusal, if a page of another origin has sent the request."""
    site = headers.get("sec-fetch-site")
    origin = headers.get("origin")
    if site is not None:
        is_own = site.strip().lower() in _OWN_SITES
    elif origin is not None:
        # Without the scheme: something in front of the load balancer may speak TLS for it.
        is_own = _host_of(origin) == (headers.get("host") or "").strip().lower()
    else:
        is_own = True
    if is_own:
        return None
    where = f" ({origin[:_MAX_SHOWN]})" if origin else ""
    return CrossOrigin(
        f"a page of another origin{where} may not do this: use the console at this address, or a program"
    )


def _host_of(origin: str) -> str | None:
    """With its port, unless that is the default of the scheme. None for "null", the origin of sandboxed pages."""
    _, separator, host = origin.strip().lower().partition("://")
    return host if separator else None
