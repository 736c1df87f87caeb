"""Consumers in the console: how far they are behind, why they get nothing, and a seek with preview and confirmation."""

from playwright.sync_api import expect

from tests.browser.console import ConsolePage
from tests.calls import Calls


def test_a_seek_is_shown_before_it_is_done(console: ConsolePage, calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name)
    producer, consumer = calls.producer(topic_name), calls.consumer(topic_name, name="billing")
    for number in range(5):
        calls.sent(topic_name, producer, f"value {number}")
    assert len(calls.drained(topic_name, consumer)) == 5

    def cursor() -> int:
        [partition] = calls.get(f"/v1/consumers/{consumer}/lag").json()["partitions"]
        offset: int = partition["cursor"]
        return offset

    assert cursor() == 5
    page = console.open(f"/consumers/{consumer}", "billing")
    console.await_live()
    page.get_by_role("button", name="Seek…").click()
    dialog = page.get_by_role("dialog")
    console.field("To").select_option("earliest")
    dialog.get_by_role("button", name="Preview").click()
    expect(dialog.get_by_text("5 messages will be read again")).to_be_visible()
    assert cursor() == 5  # a preview changes nothing
    console.keep_picture("seek")
    dialog.get_by_role("button", name="Move the cursors").click()
    expect(page.get_by_text("1 cursor of billing moved.")).to_be_visible()
    expect(page.locator("table").first).to_contain_text("5")
    assert cursor() == 0

    console.allow("status of 422")
    page.get_by_role("button", name="Seek…").click()
    console.field("To").select_option("offset")
    console.field("Partition").select_option("0")
    console.field("Offset").fill("99")
    dialog.get_by_role("button", name="Preview").click()
    dialog.get_by_role("button", name="Move the cursors").click()
    expect(dialog.get_by_role("alert").filter(has_text="code 42201")).to_be_visible()
    assert cursor() == 0


def test_a_consumer_that_gets_nothing_is_explained(console: ConsolePage, calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name)
    consumer = calls.consumer(topic_name, name="idle")
    page = console.open("/consumers", "Consumers")
    page.get_by_role("link", name="idle", exact=True).first.click()
    expect(page.locator("h1")).to_have_text("idle")
    explanation = calls.get(f"/v1/consumers/{consumer}/explain").json()["summary"]
    expect(page.locator(".explain")).to_contain_text(explanation["text"])
    expect(page.locator(".explain")).to_contain_text(explanation["action"])
