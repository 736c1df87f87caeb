"""The Python of Spark's workers on this machine: the one that runs this, with its own installed PySpark.

Spark puts an archive of PySpark's sources in front of everything. Python compiles such sources anew in every process,
which takes most of a worker's start, and Spark gives up on a worker that needs ten seconds on a busy machine.
"""

import shlex
import sys
from pathlib import Path

from spark.programs import write_program

_SCRIPT = """#!/bin/sh
set -f
kept=
IFS=:
for entry in $PYTHONPATH; do
  case $entry in
    */pyspark.zip | */py4j-*-src.zip) ;;
    *) kept=${{kept:+$kept:}}$entry ;;
  esac
done
unset IFS
export PYTHONPATH="$kept"
exec {python} "$@"
"""


def script(python: str) -> str:
    return _SCRIPT.format(python=shlex.quote(python))


def worker_python(folder: Path) -> Path:
    """A program for PYSPARK_PYTHON, made in `folder`."""
    return write_program(folder / "python", script(sys.executable))
