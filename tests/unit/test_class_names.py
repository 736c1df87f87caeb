"""One class, one name: in a stack trace, a log line or a search a name means one thing in a process."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROTOCOL = "client/myqueue/protocol"
PROCESSES = {
    "write manager": ("write_manager", "service", "db", PROTOCOL),
    "read manager": ("read_manager", "service", "db", PROTOCOL),
    "broker": ("broker", "service", PROTOCOL),
    "library": ("client/myqueue",),
    "spark": ("spark", "client/myqueue"),
    "stack": ("stack", PROTOCOL),
    "examples": ("examples",),
    "benchmarks": ("benchmarks",),
}
ALLOWED = {
    "Lag": "public in the library, and a model in the OpenAPI document",
    "Message": "public in the library; the protocol's is a row of a batch, without its offset",
    "PartitionLag": "public in the library, and a model in the OpenAPI document",
}


def owners(folders: tuple[str, ...]) -> dict[str, list[str]]:
    """Files that define a class at their top, by its name; a leading underscore makes no difference."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                found[node.name.lstrip("_")].append(str(path.relative_to(ROOT)))
    return found


@pytest.mark.parametrize("process", PROCESSES)
def test_no_class_name_twice_in_one_process(process: str) -> None:
    found = owners(PROCESSES[process])
    assert found
    twice = {name: paths for name, paths in found.items() if len(paths) > 1 and name not in ALLOWED}
    assert twice == {}


def test_every_exception_is_needed() -> None:
    found = owners(PROCESSES["library"])
    assert {name for name in ALLOWED if len(found[name]) < 2} == set()
