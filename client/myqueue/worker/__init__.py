"""A function over the messages of a topic: concurrency, retries, dead letters and their replay."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from myqueue.worker.dead_letter_replay import ReplayCounts, replay
    from myqueue.worker.dead_letters import DeadLetter, Reject
    from myqueue.worker.task_schedule import Order
    from myqueue.worker.worker import HandlerResult, Worker, WorkerCounts

__all__ = ["DeadLetter", "HandlerResult", "Order", "Reject", "ReplayCounts", "Worker", "WorkerCounts", "replay"]

# Imported on first use: the command line knows its `worker` command without loading Arrow.
_MODULES = {
    "DeadLetter": "dead_letters",
    "HandlerResult": "worker",
    "Order": "task_schedule",
    "Reject": "dead_letters",
    "ReplayCounts": "dead_letter_replay",
    "Worker": "worker",
    "WorkerCounts": "worker",
    "replay": "dead_letter_replay",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'myqueue.worker' has no attribute {name!r}")
    return getattr(import_module(f"myqueue.worker.{_MODULES[name]}"), name)
