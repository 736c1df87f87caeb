"""What Spark's Python programs need, imported once in a process that forks them.

A process that forks must have no threads, and an import may start some: with these settings no library does.
"""

import importlib
import os
import sys
from pathlib import Path

# Of numpy's OpenBLAS and of the jemalloc in pyarrow.
NO_THREADS = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
_PLANNERS = (
    *("lookup_data_sources", "create_data_source", "plan_data_source_read", "write_into_data_source"),
    *("commit_data_source_write", "python_streaming_sink_runner"),
)
MODULES = (
    "pandas",  # pyarrow imports it with the first list that it makes an array of
    "pyspark.worker",
    *(f"pyspark.sql.worker.{planner}" for planner in _PLANNERS),
    "pyspark.sql.conversion",
    "myqueue.spark.datasource",
    "myqueue.spark.sink",
    "spark.worker_daemon",
)


def preload() -> bool:
    """Whether this process may fork afterwards."""
    os.environ.update({name: value for name, value in NO_THREADS.items() if name not in os.environ})
    for module in MODULES:
        importlib.import_module(module)
    if "numpy.random" in sys.modules:
        # As if each process had imported it: its own random numbers, not those of all others.
        os.register_at_fork(after_in_child=sys.modules["numpy.random"].seed)
    return threads() == 1


def threads() -> int:
    """Of this process, also those that Python does not know of."""
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.exists() else 2  # where it cannot be known, none is risked
