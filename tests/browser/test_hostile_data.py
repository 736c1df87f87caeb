"""Messages are data: whatever they contain is shown as text, and runs, loads and breaks nothing."""

import base64
from urllib.parse import quote

from playwright.sync_api import expect

from tests.browser.console import PHONE, ConsolePage
from tests.calls import Calls

MARKUP = (
    '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
    '<svg onload="window.hacked=1"></svg><a href="javascript:window.hacked=1">click</a>'
    '<iframe src="http://evil.invalid/"></iframe><style>body{display:none}</style>"\'`${window.hacked=1}{{7*7}}'
)
CONTROL = "".join(map(chr, range(32))) + "\x7f\u202e\u2066reversed\u2028\ufeff\u0000end"
LONG = "x" * 900_000
BROKEN_UTF8 = bytes(range(128, 256)) * 10


def encoded(value: bytes) -> dict[str, str]:
    return {"base64": base64.b64encode(value).decode()}


def test_hostile_messages_are_shown_as_text(console: ConsolePage, calls: Calls, topic_name: str) -> None:
    calls.topic(topic_name)
    messages = [
        {"value": MARKUP, "key": MARKUP[:200], "headers": [{"key": MARKUP[:150], "value": MARKUP}]},
        {"value": CONTROL, "key": CONTROL, "headers": [{"key": "control", "value": CONTROL}]},
        {"value": encoded(BROKEN_UTF8), "key": encoded(BROKEN_UTF8[:100])},
        {"value": LONG, "headers": [{"key": "h", "value": "y" * 100_000}]},
        {"value": '{"a":' * 500 + "1" + "}" * 500},
        {"value": '{"__proto__": {"hacked": 1}, "constructor": 1}', "key": "__proto__"},
        {"value": ""},
    ]
    answer = calls.post(f"/v1/topics/{topic_name}/messages", {"messages": messages})
    assert answer.status_code == 200, answer.text
    for path in (f"/topics/{topic_name}/messages", f"/topics/{topic_name}/live"):
        page = console.open(path, topic_name)
        rows = page.locator("details.message")
        if path.endswith("live"):
            console.await_live()
            assert calls.post(f"/v1/topics/{topic_name}/messages", {"messages": messages}).status_code == 200
        expect(rows).to_have_count(len(messages))
        for row in rows.all():
            row.locator("summary").click()
            expect(row.locator(".body")).to_be_visible()
        main = page.locator("main")
        expect(main).to_contain_text("<script>window.hacked=1</script>")
        expect(main).to_contain_text("\\u202e")
        expect(main).to_contain_text("80 81 82 83")
        assert "\u202e" not in main.inner_text()
        for button in page.get_by_role("button", name="Show all").all():
            if button.is_visible():
                button.click()
        assert page.evaluate("window.hacked === undefined && ({}).hacked === undefined")
        assert page.locator("main").locator("script, iframe, style, svg[onload], img[onerror]").count() == 0
        assert not console.is_wider_than_its_window()
    console.keep_picture("hostile-data")


def test_hostile_names_are_shown_as_text(console: ConsolePage, calls: Calls, topic_name: str) -> None:
    """Of consumers, which may have any; those of topics are checked by the server."""
    calls.topic(topic_name)
    name = MARKUP[:180]
    consumer = calls.consumer(topic_name, name=name)
    page = console.open("/consumers", "Consumers")
    expect(page.get_by_role("link", name=name).first).to_be_visible()
    console.open(f"/consumers/{consumer}", name)
    console.allow("status of 400")
    console.open(f"/topics/{quote('<img src=x onerror=window.hacked=1>', safe='')}")
    assert page.evaluate("window.hacked === undefined")
    assert page.locator("main img").count() == 0


def test_long_names_fit_on_a_phone(console: ConsolePage, calls: Calls, topic_name: str) -> None:
    name = topic_name.ljust(200, "x")
    calls.topic(name)
    consumer = calls.consumer(name, name=name)
    sent = calls.post(f"/v1/topics/{name}/messages", {"messages": [{"value": "unread"}]})
    assert sent.status_code == 200, sent.text
    console.page.set_viewport_size(PHONE)
    shown_last = {
        "/": ".map",
        "/topics": "tbody tr",
        f"/topics/{name}": "tbody tr",
        f"/topics/{name}/produce": "form",
        "/consumers": "tbody tr",
        f"/consumers/{consumer}": ".explain",
    }
    wider = []
    for path, last in shown_last.items():
        page = console.open(path)
        expect(page.locator("main")).to_contain_text(name)
        expect(page.locator(last).first).to_be_visible()
        if console.is_wider_than_its_window():
            wider.append(path)
    assert not wider
