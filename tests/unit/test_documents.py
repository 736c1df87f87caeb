"""Documents that are made from the code say what the code says."""

import re
from pathlib import Path

from myqueue.protocol import errors
from myqueue.protocol.body_shapes import BEGIN, END, with_section
from myqueue.protocol.routes import ROUTES
from stack.settings_table import table

ROOT = Path(__file__).parents[2]


def test_the_settings_page_is_up_to_date() -> None:
    assert (ROOT / "docs/settings.md").read_text() == table()


def test_the_api_page_has_every_call() -> None:
    page = (ROOT / "docs/api.md").read_text()
    for route in ROUTES:
        assert f"`{route.method} {route.path}`" in page


def test_the_api_page_has_every_error_once_with_its_class_status_and_whether_to_retry() -> None:
    table = (ROOT / "docs/api.md").read_text().partition("| status | error_code |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    listed = [(row[0], row[1], row[2], row[3]) for row in rows]
    classes = {errors.InternalError if code == 50001 else cls for code, cls in errors.BY_CODE.items()}
    expected = [
        (str(cls.http_status), str(cls.error_code), f"`{cls.__name__}`", "yes" if cls.retriable else "")
        for cls in sorted(classes, key=lambda cls: cls.error_code)
    ]
    assert listed == expected
    assert all(row[4] for row in rows)


def test_the_api_page_has_the_shape_of_every_body() -> None:
    page = (ROOT / "docs/api.md").read_text()
    assert page == with_section(page), "run: python -m myqueue.protocol.body_shapes docs/api.md"
    assert not re.search(r'"partition"', page.partition(BEGIN)[2].partition(END)[0])
