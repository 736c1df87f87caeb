"""Brings the figures of a run into the documentation, between markers; everything else there stays as it is."""

from pathlib import Path

from benchmarks.plot import svg
from benchmarks.report import Report
from benchmarks.table import markdown
from stack.config import CHECKOUT

BEGIN = "<!-- figures of the last published benchmark run: begin -->"
END = "<!-- figures of the last published benchmark run: end -->"
PAGE = CHECKOUT / "docs" / "performance.md"
PICTURE = CHECKOUT / "docs" / "benchmark.svg"


def replace_between(text: str, new: str) -> str:
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError("the page has no markers for the figures")
    return f"{before}{BEGIN}\n{new}\n{END}{after}"


def publish(report: Report, page: Path = PAGE, picture: Path = PICTURE) -> list[Path]:
    page.write_text(replace_between(page.read_text(), markdown(report)))
    picture.write_text(svg(report))
    return [page, picture]
