"""The cluster of a run: the named one, the running stack of the checkout, or a stack for this run alone."""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from myqueue import Admin
from myqueue.cluster_url import base_url, normalized_url

Storage = Literal["disk", "memory"]
STORAGES: tuple[Storage, ...] = ("disk", "memory")


class NoCluster(Exception):
    pass


@dataclass(frozen=True, slots=True)
class ClusterChoice:
    url: str | None
    storage: Storage | None  # of a stack for this run alone


def address(text: str) -> str:
    """For argparse: HOST:PORT, or a URL."""
    try:
        return normalized_url(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_broker_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--broker",
        type=address,
        metavar="HOST:PORT",
        help="address of the load balancer (default: MYQUEUE_URL, or the stack of this checkout)",
    )


def choose_cluster(broker: str | None, storage: Storage | None) -> ClusterChoice:
    """Options override the environment, and an existing cluster a new one."""
    if broker is not None and storage is not None:
        raise NoCluster("--broker and --storage exclude each other: a cluster that is there has its storage already")
    if broker is not None or storage is not None:
        return ClusterChoice(broker, storage)
    if os.environ.get("MYQUEUE_URL"):
        try:
            return ClusterChoice(base_url(), None)
        except ValueError as error:
            raise NoCluster(str(error)) from None
    wanted = os.environ.get("MYQUEUE_STORAGE")
    if not wanted:
        return ClusterChoice(None, None)
    for known in STORAGES:
        if wanted == known:
            return ClusterChoice(None, known)
    raise NoCluster(f"MYQUEUE_STORAGE must be one of {', '.join(STORAGES)}, not {wanted!r}")


def found_url(broker: str | None) -> str:
    """For commands that never start a stack."""
    return choose_cluster(broker, None).url or running_url()


@contextmanager
def cluster(choice: ClusterChoice) -> Iterator[str]:
    """Its URL; a stack for this run is removed at the end of the block."""
    if choice.storage is None:
        url = choice.url or running_url()
        require_ready(url)
        yield url
        return
    # Imported here: the other commands do not need the servers' dependencies.
    from stack.config import StackError
    from stack.local import LocalStack

    with tempfile.TemporaryDirectory(prefix="myqueue-scenario-") as folder:
        stack = LocalStack(Path(folder) / "home", storage=choice.storage)
        try:
            url = stack.up()
            yield url
        except StackError as error:
            raise NoCluster(str(error)) from error
        finally:
            stack.clean()


def running_url() -> str:
    """Of the stack of this checkout."""
    advice = "start it with `make up`, or name a cluster with --broker HOST:PORT or MYQUEUE_URL"
    try:
        from stack.commands import url
        from stack.config import StackError, load_config
        from stack.home import Home
    except ModuleNotFoundError as error:
        raise NoCluster(f"no cluster is named, and a stack cannot run here ({error}): {advice}") from None
    try:
        home = Home(load_config().home)
        if home.is_locked():
            return url(home)
    except StackError as error:
        raise NoCluster(str(error)) from None
    raise NoCluster(f"no cluster is named, and the stack of this checkout is down: {advice}")


def require_ready(url: str) -> None:
    if (problem := _problem(url)) is not None:
        raise NoCluster(problem)


def warn_if_not_ready(name: str, url: str) -> None:
    """The library retries for a while before it fails: say why. MyQueueError if nothing answers."""
    if (problem := _problem(url)) is not None:
        print(f"{name}: {problem}; trying", file=sys.stderr, flush=True)


def _problem(url: str) -> str | None:
    with Admin(url) as admin:
        readiness = admin.ready()
    if readiness.ready:
        return None
    problems = [f"{name}: {state}" for name, state in readiness.checks.items() if state != "ok"]
    return f"{url} is not ready: {'; '.join(problems)}"
