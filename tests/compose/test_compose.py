"""The whole system in containers, as a slow test; `make slow` runs it alone, after all others."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import required
from tests.compose.__main__ import LIMIT_MINUTES

CHECKOUT = Path(__file__).resolve().parents[2]
END_S = 120  # for the containers to be taken down


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_MINUTES * 60 + END_S)
def test_the_system_in_containers(capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-m", "tests.compose"]
    lines: list[str] = []
    # Shown at once: it takes minutes. It ends by itself at its limit.
    with capsys.disabled(), subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    skipped = next((line.partition("SKIPPED: ")[2].strip() for line in lines if "SKIPPED: " in line), None)
    if skipped is not None:
        required.skip(skipped)
    assert process.returncode == 0, "".join(lines[-20:])
