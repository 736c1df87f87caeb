"""What the package offers, and what it does not load."""

import importlib
import inspect
import pickle
import pkgutil
import re
import subprocess
import sys
from copy import copy
from pathlib import Path

import pytest

import myqueue

PAGE = Path(__file__).parents[3] / "docs/client.md"
NEED_AN_EXTRA = {"myqueue.cli", "myqueue.spark"}
ERRORS = [
    known
    for name in myqueue.__all__
    if inspect.isclass(known := getattr(myqueue, name)) and issubclass(known, myqueue.MyQueueError)
]


def test_every_public_name_is_there() -> None:
    assert all(getattr(myqueue, name) is not None for name in myqueue.__all__)
    assert sorted(myqueue.__all__) == sorted(set(myqueue.__all__))


# No call of the library gets them: they are between servers, or for web pages.
INTERNAL = {
    "AnotherQuery",
    "CrossOrigin",
    "JobRunning",
    "RunEnded",
    "RunNotFound",
    "StaleDataFolder",
    "StaleEpoch",
    "StandbyManager",
    "TickTaken",
    "TopicReplaced",
}


# Where that is not what `retriable` says: after one the library reads the routing, the other is the caller's own.
RETRIED: dict[type[myqueue.MyQueueError], bool] = {myqueue.BrokerNotFound: True, myqueue.DeliveryTimeout: False}


def test_every_error_that_users_can_meet_is_public() -> None:
    for module in pkgutil.iter_modules(myqueue.__path__, "myqueue."):
        if module.name not in NEED_AN_EXTRA:
            importlib.import_module(module.name)
    kinds = [kind for kind in subclasses(myqueue.MyQueueError) if kind.__module__.startswith("myqueue.")]
    # Another test may have imported modules that need an extra; Spark raises its errors in its own way.
    known = {kind.__name__ for kind in kinds if not kind.__module__.startswith(tuple(NEED_AN_EXTRA))}
    assert known - INTERNAL == {kind.__name__ for kind in ERRORS}


def test_the_page_of_the_library_has_every_error_once_with_its_code_and_whether_it_is_retried() -> None:
    table = PAGE.read_text().partition("| class | code |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    listed = [(name, row[1], row[3] == "yes") for row in rows for name in re.findall(r"`(\w+)`", row[0])]
    expected = [
        (kind.__name__, str(kind.error_code), RETRIED.get(kind, kind.retriable))
        for kind in ERRORS
        if kind is not myqueue.MyQueueError
    ]
    assert sorted(listed) == sorted(expected)


def subclasses(kind: type[myqueue.MyQueueError]) -> set[type[myqueue.MyQueueError]]:
    return {kind, *(found for sub in kind.__subclasses__() for found in subclasses(sub))}


def test_servers_load_no_http_client_and_users_no_pydantic() -> None:
    protocol = "import sys, myqueue.protocol.models; assert 'http.client' not in sys.modules"
    light = "import sys, myqueue; assert 'pyarrow' not in sys.modules"
    library = "import sys; from myqueue import *; assert 'pydantic' not in sys.modules"
    for code in (protocol, light, library):
        subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("kind", ERRORS)
def test_every_error_can_be_copied_and_sent_to_another_process(kind: type[myqueue.MyQueueError]) -> None:
    """Those who waited for the same request get copies, and a pool of processes pickles what a worker raises."""
    error = kind("it failed", "refused") if kind is myqueue.NotConnected else kind("it failed", request_id="r1")
    error.outcome = "unknown"
    for again in (copy(error), pickle.loads(pickle.dumps(error))):
        assert type(again) is kind
        assert (str(again), vars(again)) == ("it failed", vars(error))
