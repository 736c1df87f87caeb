"""Documents that are made from the code say what the code says."""

from pathlib import Path

from myqueue.protocol import errors
from myqueue.protocol.routes import ROUTES
from stack.settings_table import table

ROOT = Path(__file__).parents[2]


def test_the_settings_page_is_up_to_date() -> None:
    assert (ROOT / "docs/settings.md").read_text() == table()


def test_the_api_page_has_every_call_and_every_client_error() -> None:
    page = (ROOT / "docs/api.md").read_text()
    for route in ROUTES:
        assert f"`{route.method} {route.path}`" in page
    for code, cls in errors.BY_CODE.items():
        if cls.http_status < 500:
            assert str(code) in page, cls
