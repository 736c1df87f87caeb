"""The library in an event loop: the same clients, with `await` where the others block."""

from myqueue.aio.consumer import AsyncConsumer
from myqueue.aio.producer import AsyncProducer

__all__ = ["AsyncConsumer", "AsyncProducer"]
