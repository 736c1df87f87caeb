"""Writes .env, the secrets of a cluster in containers: `python3 config/make_env.py`. Needs nothing but Python.

0 done, 1 not done (the file exists, or cannot be read or written), 2 wrong usage.
"""

import argparse
import os
import secrets
import sys
from pathlib import Path

TARGET = Path(__file__).resolve().parent.parent / ".env"
PROJECT = "myqueue"
SECRETS = {
    "MYQUEUE_CLUSTER_SECRET": "the processes of the cluster know each other by it",
    "MYQUEUE_DATABASE_PASSWORD": "the managers' in PostgreSQL",
    "POSTGRES_PASSWORD": "the administrator's in PostgreSQL",
    "REPLICATION_PASSWORD": "the standbys' in PostgreSQL, and Patroni's",
}


class NotDone(Exception):
    """Printed without a traceback."""


def fresh() -> str:
    # Only digits and letters: no shell, compose file or SQL statement needs to quote it.
    return secrets.token_hex(24)


def new_text() -> str:
    lines = [f"COMPOSE_PROJECT_NAME={PROJECT}"]
    for name, what in SECRETS.items():
        lines += [f"# {what}", f"{name}={fresh()}"]
    return "\n".join(lines) + "\n"


def rotated(text: str, name: str) -> str:
    """The same text with another value for one name."""
    lines = text.splitlines()
    places = [number for number, line in enumerate(lines) if line.startswith(f"{name}=")]
    if len(places) != 1:
        raise NotDone(f"has {len(places)} lines that start with {name}=, not one")
    lines[places[0]] = f"{name}={fresh()}"
    return "\n".join(lines) + "\n"


def write(path: Path, text: str, *, replace: bool) -> None:
    """Atomic, and at no moment readable by other users."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        if replace:
            temporary.replace(path)
        else:
            os.link(temporary, path)  # unlike a rename, it does not replace an existing file
    finally:
        temporary.unlink(missing_ok=True)


def act(path: Path, rotate: str | None) -> str:
    if rotate is not None:
        write(path, rotated(path.read_text(), rotate), replace=True)
        return f"{path}: {rotate} has a new value; docs/operations.md says how the cluster takes it over"
    try:
        write(path, new_text(), replace=False)
    except FileExistsError:
        raise NotDone(
            "exists and is left as it is: a running cluster knows these secrets. --rotate NAME changes one of them"
        ) from None
    return f"{path}: written, mode 600, {len(SECRETS)} secrets"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make_env.py", description=__doc__)
    parser.add_argument("--file", type=Path, default=TARGET, help="where to write (default: .env of the checkout)")
    parser.add_argument("--rotate", metavar="NAME", choices=list(SECRETS), help=f"of {', '.join(SECRETS)}")
    arguments = parser.parse_args(argv)
    try:
        print(act(arguments.file, arguments.rotate))
    except (NotDone, OSError) as failure:
        why = failure.strerror if isinstance(failure, OSError) else failure
        print(f"{arguments.file}: {why}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
