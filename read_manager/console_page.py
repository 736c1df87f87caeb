"""The console at `/`: a page for browsers, from the files in console/. A program that asks for no HTML gets a 404."""

import gzip
import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from myqueue.protocol import routes
from myqueue.protocol.errors import RouteNotFound
from myqueue.protocol.routes import Route
from service.http_messages import Headers, HttpRequest, HttpResponse
from service.router import Router

FOLDER = Path(__file__).parent / "console"
PAGE = "index.html"
MISSING = "missing.html"
ASSET = Route("console_asset", "GET", "/console/{version}/{name}", "read", "A file of the console")
UNVERSIONED = Route("console_folder", "GET", "/console/{name}", "read", "A page that says that there is nothing")
CONTENT_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# No inline script or style, no other host, and no string ever becomes markup: a message cannot inject anything, even
# if a page had a defect.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
SECURITY: Headers = [
    ("content-security-policy", POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
]
FOREVER = "public, max-age=31536000, immutable"
CHECKED = "no-cache"  # kept, but compared by its ETag before each use
_MIN_COMPRESSED_BYTES = 512


@dataclass(frozen=True)
class Asset:
    content: bytes
    content_type: str

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.content).hexdigest()[:16]

    @cached_property
    def compressed(self) -> bytes | None:
        """None if that is not smaller."""
        if len(self.content) < _MIN_COMPRESSED_BYTES:
            return None
        made = gzip.compress(self.content, 9, mtime=0)
        return made if len(made) < len(self.content) else None

    def answer(self, request: HttpRequest, caching: str, status: int = 200) -> HttpResponse:
        compressed = self.compressed if _takes_gzip(request.header("accept-encoding") or "") else None
        tag = f'"{self.digest}"' if compressed is None else f'"{self.digest}-gzip"'
        headers: Headers = [
            ("content-type", self.content_type),
            ("cache-control", caching),
            ("etag", tag),
            ("vary", "accept, accept-encoding"),
            *SECURITY,
        ]
        if status == 200 and tag in _tags(request.header("if-none-match") or ""):
            return HttpResponse(304, headers, b"")
        if compressed is not None:
            headers.append(("content-encoding", "gzip"))
        return HttpResponse(status, headers, self.content if compressed is None else compressed)


class Console:
    """All files, read once: an answer takes no disk, and no path of a request ever reaches the disk."""

    def __init__(self, folder: Path = FOLDER) -> None:
        files = sorted(path for path in folder.rglob("*") if path.suffix in CONTENT_TYPES)
        content = {path.name: path.read_bytes() for path in files}
        if len(content) != len(files):
            raise ValueError(f"two files under {folder} have the same name")
        pages = {name: content.pop(name) for name in (PAGE, MISSING)}
        # One version for all of them: modules import each other by relative names, so they share the folder of a URL.
        digests = [f"{name} {hashlib.sha256(file).hexdigest()}" for name, file in content.items()]
        self.version = hashlib.sha256("\n".join(digests).encode()).hexdigest()[:12]
        self.assets = {name: Asset(file, CONTENT_TYPES[Path(name).suffix]) for name, file in content.items()}
        self.page, self._missing = (
            Asset(page.replace(b"{version}", self.version.encode()), CONTENT_TYPES[".html"]) for page in pages.values()
        )
        for asset in (*self.assets.values(), self.page, self._missing):
            _ = asset.compressed  # now, not while a request waits

    def add_routes(self, router: Router) -> None:
        router.add(routes.CONSOLE, self.answer_page)
        router.add(ASSET, self.answer_asset)
        router.add(UNVERSIONED, self.answer_missing)

    async def answer_page(self, request: HttpRequest) -> HttpResponse:
        if not _wants_html(request):
            raise RouteNotFound()
        return self.page.answer(request, CHECKED)

    async def answer_asset(self, request: HttpRequest) -> HttpResponse:
        """Of whatever version: while read managers are replaced one by one, a page of one of them may fetch its files
        from another. Only what has the version of its URL is kept."""
        asset = self.assets.get(request.path_values["name"])
        if asset is None:
            return await self.answer_missing(request)
        return asset.answer(request, FOREVER if request.path_values["version"] == self.version else CHECKED)

    async def answer_missing(self, request: HttpRequest) -> HttpResponse:
        if not _wants_html(request):
            raise RouteNotFound()
        return self._missing.answer(request, CHECKED, 404)


def _wants_html(request: HttpRequest) -> bool:
    """Browsers name it. Programs accept anything, or JSON."""
    return "text/html" in (request.header("accept") or "").lower()


def _takes_gzip(accepted: str) -> bool:
    for item in accepted.lower().split(","):
        coding, _, parameters = item.partition(";")
        if coding.strip() == "gzip":
            return parameters.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def _tags(given: str) -> set[str]:
    """Compared weakly, as If-None-Match is."""
    return {tag.strip().removeprefix("W/") for tag in given.split(",")}
