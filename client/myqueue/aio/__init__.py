"""The library for asyncio."""

from myqueue.aio.consumer import AsyncConsumer

__all__ = ["AsyncConsumer"]
