"""A consumer that was dropped without being closed gives its partitions back.

The background thread would renew their leases as long as the process lives, and nobody could read them. One that has
never read has none, and only needs the thread no more.
"""

import logging
import warnings
from contextlib import suppress

from myqueue.consumer_core import ConsumerCore
from myqueue.consumer_waits import BackgroundWaits
from myqueue.io_thread import io_threads

logger = logging.getLogger("myqueue")


def give_back(core: ConsumerCore | None) -> None:
    """For `__del__`. Takes no lock and does not wait: the garbage collector may run it in any thread, at any place.

    What was in hand is not committed: it may be half processed.
    """
    if core is None or core.io is None or not core.is_open():  # None: an argument was refused
        return
    if not core.has_leases():
        with suppress(RuntimeError):  # the interpreter ends
            core.io.call_soon(io_threads.release, core.io.url, core.io)
        return
    text = f"consumer {core.name!r} of topic {core.topic!r} was dropped without being closed: close it"
    logger.warning("%s; its partitions go to others, and the message in hand is delivered again", text)
    with suppress(Exception):  # a filter may turn it into an error, of which nothing here can take notice
        warnings.warn(text, ResourceWarning, stacklevel=3)
    core.waits = BackgroundWaits()
    closing = core.close(ResourceWarning(text), call_back=False)  # it is not the application's thread
    try:
        core.io.submit(closing)
    except RuntimeError:  # the interpreter ends
        closing.close()
