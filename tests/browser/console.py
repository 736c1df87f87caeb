"""The console in a real Chromium: opens pages, records requests and the browser's complaints, runs axe-core."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, Request, Response, ViewportSize, expect

HERE = Path(__file__).parent
AXE = HERE / "vendor" / "axe-core" / "axe.min.js"
SCREENSHOTS = HERE / "screenshots"  # kept for people; git ignores them
WITHIN_MS = 20_000
DESKTOP: ViewportSize = {"width": 1280, "height": 860}
PHONE: ViewportSize = {"width": 360, "height": 740}
BAD_IMPACTS = ("serious", "critical")

expect.set_options(timeout=WITHIN_MS)


@dataclass(frozen=True)
class Fault:
    rule: str
    impact: str
    where: tuple[str, ...]


@dataclass
class ConsolePage:
    page: Page
    url: str
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    received_bytes: int = 0
    allowed: list[str] = field(default_factory=list)  # patterns of complaints that a test provokes

    def __post_init__(self) -> None:
        self.page.set_default_timeout(WITHIN_MS)
        self.page.on("console", self._on_message)
        self.page.on("pageerror", lambda error: self.complaints.append(f"exception: {error}"))
        self.page.on("request", self._on_request)
        self.page.on("response", self._on_response)

    def _on_message(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text} ({message.location.get('url', '')})")

    def _on_request(self, request: Request) -> None:
        self.requests.append(request.url)

    def _on_response(self, response: Response) -> None:
        """Bodies of event streams have no length."""
        self.received_bytes += int(response.headers.get("content-length", "0"))

    def open(self, path: str = "/", heading: str | re.Pattern[str] | None = None) -> Page:
        """Waits for the page's heading, and for its figures if it is live."""
        self.page.goto(f"{self.url}/#{path}")
        top = self.page.locator("h1")
        expect(top).to_be_visible()
        if heading is not None:
            expect(top).to_have_text(heading)
        return self.page

    def await_live(self) -> None:
        expect(self.page.locator(".live")).to_have_attribute("data-state", "live")

    def allow(self, pattern: str) -> None:
        self.allowed.append(pattern)

    def check(self) -> None:
        """Nothing went to another server, and the browser had nothing to complain about."""
        own = urlsplit(self.url).netloc
        others = [
            url for url in self.requests if urlsplit(url).netloc != own and not url.startswith(("data:", "blob:"))
        ]
        assert not others, others
        left = [text for text in self.complaints if not any(re.search(pattern, text) for pattern in self.allowed)]
        assert not left, left

    def faults(self, rules: Sequence[str] = ()) -> list[Fault]:
        """What axe-core finds on the page as it is, of those that keep people from using it."""
        self.page.evaluate(AXE.read_text(encoding="utf-8") + "; 0")
        options: dict[str, Any] = {"resultTypes": ["violations"]}
        if rules:
            options["runOnly"] = list(rules)
        found = self.page.evaluate("(options) => axe.run(document, options)", options)
        return [
            Fault(each["id"], each["impact"], tuple(str(node["target"]) for node in each["nodes"]))
            for each in found["violations"]
            if each["impact"] in BAD_IMPACTS
        ]

    def is_wider_than_its_window(self) -> bool:
        wider: bool = self.page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
        return wider

    def keep_picture(self, name: str) -> Path:
        SCREENSHOTS.mkdir(exist_ok=True)
        path = SCREENSHOTS / f"{name}.png"
        self.page.screenshot(path=path, animations="disabled")
        return path

    def field(self, label: str) -> Locator:
        return self.page.get_by_label(label, exact=True)

    def problem_of(self, label: str) -> Locator:
        """The message beside a field of a form."""
        return self.page.locator(".field", has=self.field(label)).locator(".problem")


@contextmanager
def console_page(browser: Browser, url: str) -> Iterator[ConsolePage]:
    context = browser.new_context(
        color_scheme="light",
        viewport=DESKTOP,
        locale="en-GB",
        timezone_id="Europe/Berlin",
        reduced_motion="reduce",
    )
    try:
        made = ConsolePage(context.new_page(), url)
        yield made
        made.check()
    finally:
        context.close()
