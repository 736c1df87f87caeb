"""Ends threads that queries leave behind in Spark's Java.

A query over a Python source has a Python process of its own on the driver, and a thread in Java that ends idle ones.
Spark ends the process with the query, but never the thread: a job that runs once a minute would leave 1,440 of them a
day, until the container allows no more. Processes outside of a daemon are never idle, so such a thread has no work.
"""

import logging

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.sql import SparkSession

logger = logging.getLogger("myqueue")

_MONITOR = "org.apache.spark.api.python.PythonWorkerFactory$MonitorThread"
_FACTORY = "org$apache$spark$api$python$PythonWorkerFactory$MonitorThread$$$outer"


def end_idle_monitors(session: SparkSession) -> None:
    jvm = session.sparkContext._jvm
    assert jvm is not None
    try:
        # They end by an exception. This handler logs it at the given level, which nobody prints.
        silent = jvm.org.glassfish.jersey.process.JerseyProcessingUncaughtExceptionHandler(
            jvm.java.util.logging.Level.FINEST
        )
        for thread in jvm.java.lang.Thread.getAllStackTraces().keySet():
            if thread.getClass().getName() == _MONITOR and not getattr(thread, _FACTORY)().useDaemonEnabled():
                thread.setUncaughtExceptionHandler(silent)
                thread.interrupt()
    except (Py4JNetworkError, OSError):
        logger.debug("Java is gone, and its threads with it")
    except (Py4JError, TypeError) as error:
        # Another version of Spark may name these otherwise. The query's own error must not be hidden by that.
        logger.warning("threads of ended queries stay in Spark's Java: %s", error)
