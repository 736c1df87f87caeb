"""A function over the messages of a topic: concurrency, retries, dead letters and their replay."""

from myqueue.worker.dead_letter_replay import ReplayCounts, replay
from myqueue.worker.dead_letters import DeadLetter, Reject
from myqueue.worker.task_schedule import Order
from myqueue.worker.worker import HandlerResult, Worker, WorkerCounts

__all__ = ["DeadLetter", "HandlerResult", "Order", "Reject", "ReplayCounts", "Worker", "WorkerCounts", "replay"]
