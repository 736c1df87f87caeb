"""Topics in the console: make one, send messages, see them arrive, change and delete it; what is wrong with input."""

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.console import ConsolePage, console_page
from tests.calls import Calls, token_of
from tests.waiting import until

pytestmark = pytest.mark.timeout(300)  # the last test waits until the stack has stopped


def test_a_topic_from_its_creation_to_its_end(
    browser: Browser, url: str, console: ConsolePage, calls: Calls, topic_name: str
) -> None:
    page = console.open("/topics", "Topics")
    page.get_by_role("button", name="Create topic").first.click()
    console.field("Name").fill(topic_name)
    console.field("Partitions").fill("2")
    console.field("Keep for").fill("7d")
    page.get_by_role("dialog").get_by_role("button", name="Create topic").click()
    expect(page.locator("h1")).to_have_text(topic_name)
    described = calls.get(f"/v1/topics/{topic_name}").json()
    assert (described["partitions"], described["retention_ms"]) == (2, 7 * 86_400_000)

    with console_page(browser, url) as other:
        tail = other.open(f"/topics/{topic_name}/live", topic_name)
        other.await_live()
        page.get_by_role("link", name="Produce").click()
        console.field("Value").fill('{"order": 1, "big": 12345678901234567890}')
        console.field("Key").fill("customer-7")
        console.field("Headers").fill("source: shop")
        page.get_by_role("button", name="Send").click()
        expect(page.get_by_text("Stored in partition")).to_be_visible()
        arrived = tail.locator("details.message")
        expect(arrived).to_have_count(1)
        expect(arrived).to_contain_text("customer-7")
        arrived.locator("summary").click()
        expect(arrived).to_contain_text('"big": 12345678901234567890')  # not rounded
        expect(arrived).to_contain_text("shop")

    page.get_by_role("link", name="Look at it").click()
    expect(page.locator("details.message")).to_have_count(1)

    page.get_by_role("link", name="Settings").click()
    console.field("Keep for").fill("1h")
    page.get_by_role("button", name="Change retention").click()
    expect(page.get_by_text("keeps its messages")).to_be_visible()
    until(lambda: calls.get(f"/v1/topics/{topic_name}").json()["retention_ms"] == 3_600_000, what="it is changed")

    page.get_by_role("button", name="Delete topic…").click()
    dialog = page.get_by_role("dialog")
    delete = dialog.get_by_role("button", name="Delete topic")
    expect(delete).to_be_disabled()
    dialog.get_by_label(f"Type {topic_name} to confirm").fill(topic_name)
    delete.click()
    expect(page.locator("h1")).to_have_text("Topics")

    def is_forgotten() -> bool:
        """By both read managers, asked in turn: a page of topics would ask for its settings, and get a 404."""
        listings = ("/topics", "/v1/cluster/overview")
        return all(topic_name not in calls.get(path).text for path in listings for _ in range(10))

    until(is_forgotten, what="no read manager lists the deleted topic")
    assert calls.get(f"/v1/topics/{topic_name}").status_code == 404


def test_what_is_wrong_stands_beside_its_field(console: ConsolePage, calls: Calls, topic_name: str) -> None:
    console.allow("status of 400")
    console.allow("status of 409")
    made = calls.create_topic(topic_name)
    before = calls.get("/topics", headers=token_of(made)).json()["topics"]
    page = console.open("/topics", "Topics")
    page.get_by_role("button", name="Create topic").first.click()
    submit = page.get_by_role("dialog").get_by_role("button", name="Create topic")

    for name, partitions, label, message in (
        ("no/slash", "1", "Name", "name"),
        ("<b>x</b>", "1", "Name", "name"),
        (topic_name, "1", "Name", "exists"),
        ("fine", "0", "Partitions", "greater than or equal to 1"),
        ("fine", "100000", "Partitions", "less than or equal to"),
        ("fine", "many", "Partitions", "number"),
    ):
        console.field("Name").fill(name)
        console.field("Partitions").fill(partitions)
        submit.click()
        problem = console.problem_of(label)
        expect(problem).to_contain_text(message, ignore_case=True)
        expect(console.field(label)).to_have_attribute("aria-invalid", "true")
        expect(console.field(label)).to_be_focused()
        assert console.field("Name").input_value() == name  # nothing typed is lost
    console.keep_picture("bad-input")
    assert calls.get("/topics", headers=token_of(made)).json()["topics"] == before


def test_the_message_browser_finds_what_was_stored(console: ConsolePage, calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name)
    producer = calls.producer(topic_name)
    for number in range(60):
        calls.sent(topic_name, producer, f"value {number}")
    page = console.open(f"/topics/{topic_name}/messages", topic_name)
    rows = page.locator("details.message")
    expect(rows).to_have_count(50)
    expect(rows.first).to_contain_text("value 59")  # the newest first
    page.get_by_role("button", name="Load more").click()
    expect(rows).to_have_count(60)
    console.field("From").select_option("offset")
    console.field("Partition").select_option("0")
    console.field("Offset").fill("7")
    page.get_by_role("button", name="Show").click()
    expect(rows.first).to_contain_text("value 7")
    console.field("From").select_option("oldest")
    console.field("Filter").fill("value 41")
    page.get_by_role("button", name="Show").click()
    expect(rows).to_have_count(1)
