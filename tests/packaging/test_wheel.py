"""The wheel of the library, installed into empty environments: each extra brings what its modules import.

Packages come from wherever pip is configured to find them.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from myqueue.version import VERSION

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CLIENT = Path(__file__).parents[2] / "client"
PYTHONS = ("3.11", "3.12", "3.13")
INSTALL_S = 400
# What only the extra can import; everything else must be importable without any.
OF_EXTRA = {
    "cli": ("myqueue.cli",),
    "server": (
        "myqueue.protocol.answers",
        "myqueue.protocol.body_shapes",
        "myqueue.protocol.event_models",
        "myqueue.protocol.internal",
        "myqueue.protocol.message_calls",
        "myqueue.protocol.models",
        "myqueue.protocol.openapi",
        "myqueue.protocol.overview",
        "myqueue.protocol.stats_answers",
        "myqueue.protocol.stats_queries",
    ),
    "spark": ("myqueue.spark",),
}
IMPORT_ALL = """
import importlib, json, pkgutil, sys, myqueue
left_out = tuple(json.loads(sys.argv[1]))
found = [module.name for module in pkgutil.walk_packages(myqueue.__path__, "myqueue.", onerror=lambda _: None)]
for name in found:
    if not any(name == other or name.startswith(other + ".") for other in left_out) and not name.endswith("__main__"):
        importlib.import_module(name)
for name in myqueue.__all__:
    getattr(myqueue, name)
print(len(found), myqueue.__file__)
"""


def interpreter(version: str) -> Path | None:
    """On PATH, or one that pyenv has built."""
    if "{}.{}".format(*sys.version_info) == version:
        return Path(sys.executable)
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    built = [*sorted(root.glob(f"versions/{version}.*/bin/python")), shutil.which(f"python{version}")]
    return next((Path(path) for path in built if path and _runs(path)), None)


def _runs(python: str | Path) -> bool:
    """pyenv has commands for versions that are not chosen; they only fail."""
    return subprocess.run([python, "-c", "import venv, ensurepip"], capture_output=True, check=False).returncode == 0


def run(command: Sequence[str | Path], timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    """Without variables that would lend it the packages of this environment."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    built = run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, CLIENT])
    assert built.returncode == 0, built.stderr
    return next(folder.glob("*.whl"))


def empty_environment(version: str, folder: Path) -> Path:
    """Its Python."""
    python = interpreter(version)
    if python is None:
        pytest.skip(f"there is no Python {version} on this machine")
    made = run([python, "-m", "venv", folder])
    assert made.returncode == 0, made.stderr
    return folder / "bin" / "python"


@pytest.mark.parametrize("extra", ["", "cli", "server"])
@pytest.mark.parametrize("version", PYTHONS)
def test_an_extra_brings_all_that_its_modules_need(wheel: Path, tmp_path: Path, version: str, extra: str) -> None:
    python = empty_environment(version, tmp_path / "venv")
    wanted = f"{wheel}[{extra}]" if extra else str(wheel)
    installed = run([python, "-m", "pip", "install", "-q", "--no-compile", "--only-binary=:all:", wanted], INSTALL_S)
    assert installed.returncode == 0, installed.stderr
    checked = run([python, "-m", "pip", "check"])
    assert checked.returncode == 0, checked.stdout
    left_out = [module for other, modules in OF_EXTRA.items() if other != extra for module in modules]
    imported = run([python, "-I", "-c", IMPORT_ALL, json.dumps(left_out)])
    assert imported.returncode == 0, imported.stderr
    assert str(tmp_path) in imported.stdout
    command = run([python.parent / "myqueue", "--version"])
    if extra == "cli":
        assert (command.returncode, command.stdout.strip()) == (0, f"myqueue {VERSION}"), command.stderr
    else:
        assert (command.returncode, command.stdout) == (2, "")
        assert "pip install 'myqueue[cli]'" in command.stderr


@pytest.mark.parametrize("version", PYTHONS)
def test_the_extra_for_spark_can_be_resolved(wheel: Path, tmp_path: Path, version: str) -> None:
    """It has half a gigabyte, and tests/spark import its modules: only what pip would install is looked at."""
    python = empty_environment(version, tmp_path / "venv")
    report = tmp_path / "report.json"
    resolved = run(
        [python, "-m", "pip", "install", "-q", "--dry-run", "--report", report, f"{wheel}[spark]"], INSTALL_S
    )
    assert resolved.returncode == 0, resolved.stderr
    names = {found["metadata"]["name"].lower() for found in json.loads(report.read_text())["install"]}
    assert {"myqueue", "pyspark", "pandas", "pyarrow"} <= names
