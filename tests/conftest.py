"""Settings of all tests."""

import gc
import signal

from hypothesis import settings

# Machines are noisy: how long one example takes says nothing about the code.
settings.register_profile("myqueue", deadline=None)
settings.load_profile("myqueue")

# A shell makes what it runs in the background deaf to Ctrl-C, and children inherit that; the tests press it.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Modules live until the end: the garbage collector need not look at them again for every few examples."""
    gc.collect()
    gc.freeze()
