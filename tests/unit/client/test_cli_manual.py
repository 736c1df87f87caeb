"""docs/cli.md, and what the shells are told."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from myqueue.cli.app import app
from myqueue.cli.manual import page

ROOT = Path(__file__).parents[3]


def test_the_page_is_made_from_the_help() -> None:
    assert (ROOT / "docs/cli.md").read_text() == page(), "python -m myqueue.cli.manual > docs/cli.md"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_call_the_command(shell: str) -> None:
    done = CliRunner().invoke(app, ["completion", shell])
    assert done.exit_code == 0, done.output
    assert "_MYQUEUE_COMPLETE=complete_" + shell in done.output


def test_the_command_completes_for_bash() -> None:
    asked = {"_MYQUEUE_COMPLETE": "complete_bash", "COMP_WORDS": "myqueue cluster ", "COMP_CWORD": "2"}
    done = subprocess.run(
        [sys.executable, "-m", "myqueue.cli"], env=os.environ | asked, capture_output=True, text=True, timeout=30
    )
    assert done.stdout.split() == ["status", "watch"], done
