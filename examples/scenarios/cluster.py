"""Which cluster to use: the one that is named, the checkout's own if it runs, or a stack made for this run alone."""

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
from myqueue.http_connection import base_url

Storage = Literal["disk", "memory"]
STORAGES: tuple[Storage, ...] = ("disk", "memory")


class NoCluster(Exception):
    pass


@dataclass(frozen=True, slots=True)
class Wish:
    url: str | None
    storage: Storage | None  # a stack of its own, with this storage


def address(text: str) -> str:
    """For argparse: HOST:PORT, or a URL."""
    try:
        return base_url(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_broker_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--broker",
        type=address,
        metavar="HOST:PORT",
        help="address of the load balancer (default: MYQUEUE_URL, or the stack of this checkout)",
    )


def wish_of(broker: str | None, storage: Storage | None) -> Wish:
    """Options win over the environment, a cluster that is there over one that would have to be made."""
    if broker is not None and storage is not None:
        raise NoCluster("--broker and --storage exclude each other: a cluster that is there has its storage already")
    if broker is not None or storage is not None:
        return Wish(broker, storage)
    if url := os.environ.get("MYQUEUE_URL"):
        try:
            return Wish(base_url(url), None)
        except ValueError as error:
            raise NoCluster(f"MYQUEUE_URL: {error}") from None
    wanted = os.environ.get("MYQUEUE_STORAGE")
    if not wanted:
        return Wish(None, None)
    for known in STORAGES:
        if wanted == known:
            return Wish(None, known)
    raise NoCluster(f"MYQUEUE_STORAGE must be one of {', '.join(STORAGES)}, not {wanted!r}")


def found_url(broker: str | None) -> str:
    """For those who never start a stack."""
    return wish_of(broker, None).url or running_url()


@contextmanager
def cluster(wish: Wish) -> Iterator[str]:
    """Its URL; what was made for this run is removed at the end of the block."""
    if wish.storage is None:
        url = wish.url or running_url()
        require_ready(url)
        yield url
        return
    # Only here: nothing else needs what the servers need.
    from stack.failure import StackError
    from stack.local import LocalStack

    with tempfile.TemporaryDirectory(prefix="myqueue-scenario-") as folder:
        stack = LocalStack(Path(folder) / "home", storage=wish.storage)
        try:
            url = stack.up()
            yield url
        except StackError as error:
            raise NoCluster(str(error)) from error
        finally:
            stack.clean()


def running_url() -> str:
    """Of the checkout's own stack."""
    advice = "start it with `make up`, or name a cluster with --broker HOST:PORT or MYQUEUE_URL"
    try:
        from stack.commands import url
        from stack.config import load_config
        from stack.failure import StackError
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


def tell_if_not_ready(who: str, url: str) -> None:
    """What follows is tried for a while before it fails: nobody should wonder meanwhile. Where nothing answers there
    is nothing to wait for: MyQueueError."""
    if (problem := _problem(url)) is not None:
        print(f"{who}: {problem}; trying", file=sys.stderr, flush=True)


def _problem(url: str) -> str | None:
    with Admin(url) as admin:
        readiness = admin.ready()
    if readiness.ready:
        return None
    problems = [f"{name}: {state}" for name, state in readiness.checks.items() if state != "ok"]
    return f"{url} is not ready: {'; '.join(problems)}"
