"""One stack and one Chromium for all browser tests.

With MYQUEUE_TEST_URL they look at what answers there, and those that break processes are deselected.
"""

import os
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import requests
from playwright.sync_api import Browser, expect, sync_playwright

from tests.browser.console import ConsolePage, console_page
from tests.calls import Calls
from tests.cluster import Cluster, running_cluster
from tests.required import skip

GIVEN_URL = os.environ.get("MYQUEUE_TEST_URL")
ARGUMENTS = [
    "--no-sandbox",  # which root cannot have
    "--disable-dev-shm-usage",
    "--disable-gpu",
    # Whatever the browser itself wanted to ask for: no name resolves.
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if GIVEN_URL is None:
        return
    inside = [item for item in items if isinstance(item, pytest.Function) and "new_stack" in item.fixturenames]
    config.hook.pytest_deselected(items=inside)
    items[:] = [item for item in items if item not in inside]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium")
    if program is None:
        skip("there is no chromium")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        yield started
        started.close()


@dataclass(frozen=True)
class NewStack:
    cluster: Cluster
    first_page: str  # what the console showed before there was any topic


@pytest.fixture(scope="session")
def new_stack(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[NewStack]:
    with running_cluster(tmp_path_factory.mktemp("stack")) as cluster:
        with console_page(browser, cluster.url) as console:
            page = console.open("/", "Overview")
            expect(page.get_by_text("All is well.")).to_be_visible()
            console.keep_picture("empty")
            first_page = page.locator("main").inner_text()
        yield NewStack(cluster, first_page)


@pytest.fixture(scope="session")
def url(request: pytest.FixtureRequest) -> str:
    if GIVEN_URL is not None:
        return GIVEN_URL
    stack: NewStack = request.getfixturevalue("new_stack")
    return stack.cluster.url


@pytest.fixture
def calls(url: str) -> Iterator[Calls]:
    with requests.Session() as session:
        yield Calls(url, session)


@pytest.fixture
def topic_name() -> str:
    """Tests share the stack, so each has a topic of its own."""
    return f"t-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def console(browser: Browser, url: str) -> Iterator[ConsolePage]:
    """A page of its own; after the test, no request has left the server and the browser has not complained."""
    with console_page(browser, url) as made:
        yield made
