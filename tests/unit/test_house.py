"""Rules of the code that no other tool checks: sizes of files, how tests wait, and that the documented files exist."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = (
    *(".ci", "benchmarks", "broker", "client", "config", "db", "examples"),
    *("read_manager", "service", "spark", "stack", "tests", "write_manager"),
)
MAX_LINES = 450
MAY_SLEEP = "tests/waiting.py"


def sources(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_file_can_be_read_in_one_go(folder: str) -> None:
    lines = {str(path.relative_to(ROOT)): path.read_text().count("\n") for path in sources(folder)}
    assert lines
    assert {path: count for path, count in lines.items() if count > MAX_LINES} == {}


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "broker/DESIGN.md"])
def test_every_file_that_a_page_names_exists(page: str) -> None:
    named = set(re.findall(r"`([\w./-]+\.(?:py|js|conf|sh|yml))`", (ROOT / page).read_text()))
    assert {name for name in named if not name_exists(name)} == set()


def name_exists(name: str) -> bool:
    """Under any folder: a page leaves out the folder that it has just named."""
    return (ROOT / name).exists() or any(list((ROOT / folder).rglob(name)) for folder in (*FOLDERS, "load_balancer"))


def sleeps(tree: ast.Module) -> Iterator[int]:
    """Lines that name `time.sleep`, under whatever name."""
    names = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == "time"
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            yield from (node.lineno for alias in node.names if alias.name == "sleep")
        elif isinstance(node, ast.Attribute) and node.attr == "sleep" and ast.unparse(node.value) in names:
            yield node.lineno


def test_tests_wait_to_a_deadline() -> None:
    """A sleep is too long on a fast machine and too short on a slow one: tests/waiting.py has what to use instead."""
    found = {str(path.relative_to(ROOT)): list(sleeps(ast.parse(path.read_text()))) for path in sources("tests")}
    assert found.pop(MAY_SLEEP)
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_every_way_to_name_a_sleep_is_found() -> None:
    lines = [
        "import time",
        "import time as t",
        "from time import sleep",
        "time.sleep(1)",
        "t.sleep(1)",
        "loop.sleep(0)",
    ]
    assert sorted(sleeps(ast.parse("\n".join(lines)))) == [3, 4, 5]
