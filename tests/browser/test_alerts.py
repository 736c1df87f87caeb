"""A broker that dies is an alert within seconds, on the page that is open, until it is back."""

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import NewStack
from tests.browser.console import ConsolePage
from tests.calls import Calls

pytestmark = pytest.mark.timeout(300)  # the first test waits for the stack


def test_a_broker_dies_and_comes_back(new_stack: NewStack, console: ConsolePage, calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name, 3)
    page = console.open("/", "Overview")
    expect(page.get_by_text("All is well.")).to_be_visible()
    new_stack.cluster.stop("broker-2")
    try:
        alert = page.locator(".alerts li[data-code=broker_down]")
        expect(alert).to_contain_text("broker 2")
        expect(page.locator(".alerts li[data-code=under_replicated]")).to_be_visible()
        expect(page.locator("tr", has_text="broker-2")).to_contain_text("down")
        console.keep_picture("alert")
    finally:
        new_stack.cluster.start("broker-2")
    expect(page.get_by_text("All is well.")).to_be_visible(timeout=60_000)
    expect(alert).to_have_count(0)


def test_an_empty_cluster_says_what_to_do_first(new_stack: NewStack) -> None:
    assert "All is well." in new_stack.first_page
    assert "Send a first message" in new_stack.first_page
    assert "curl" in new_stack.first_page
    assert new_stack.cluster.url in new_stack.first_page
