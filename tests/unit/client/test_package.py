"""What the package offers, and what it does not load."""

import inspect
import pickle
import subprocess
import sys
from copy import copy

import pytest

import myqueue

ERRORS = [
    known
    for name in myqueue.__all__
    if inspect.isclass(known := getattr(myqueue, name)) and issubclass(known, myqueue.MyQueueError)
]


def test_every_public_name_is_there() -> None:
    assert all(getattr(myqueue, name) is not None for name in myqueue.__all__)
    assert sorted(myqueue.__all__) == sorted(set(myqueue.__all__))


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
