"""Settings of all tests."""

import gc
import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

from stack import ports
from tests.port_reservations import FOLDER, with_reservations

# Machines are noisy: how long one example takes says nothing about the code.
settings.register_profile("myqueue", deadline=None)
settings.load_profile("myqueue")

# A shell makes what it runs in the background deaf to Ctrl-C, and children inherit that; the tests press it.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure() -> None:
    if FOLDER in os.environ:
        reserve = with_reservations(ports.can_bind, Path(os.environ[FOLDER]))
        pytest.MonkeyPatch().setattr(ports, "can_bind", reserve)


def pytest_collection_finish() -> None:
    """Modules live until the end: the garbage collector need not look at them again for every few examples."""
    gc.collect()
    gc.freeze()
