"""A thousand consumers in one process: each receives, and they share a few threads."""

import asyncio
import threading
from collections import Counter

import pytest

from myqueue import Admin, Producer, RetryPolicy
from myqueue.aio import AsyncConsumer

CONSUMERS = 1000
AT_ONCE = 50  # registrations
MAX_THREADS = 4  # one for requests, and those that look up names


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_thousand_consumers_without_a_thread_each(url: str, topic_name: str) -> None:
    with Admin(url) as admin:
        admin.create_topic(topic_name, partitions=1)
    with Producer(url, topic=topic_name) as producer:
        producer.send_many([b"first", b"second"])
        producer.flush()
    before = threading.active_count()
    most = 0

    async def read(number: int, opening: asyncio.Semaphore, opened: asyncio.Barrier) -> list[bytes]:
        nonlocal most
        patient = RetryPolicy(deadline_s=120.0)
        consumer = AsyncConsumer(
            url, topic_name, name=f"reader-{number}", start="earliest", prefetch_bytes=1 << 16, retry=patient
        )
        async with opening:
            await consumer.open()
        try:
            first = await consumer.poll(120)
            await opened.wait()  # all of them are open, and have received something
            most = max(most, threading.active_count() - before)
            second = await consumer.poll(120)
            while second is not None and second.offset == 0:  # delivered again: a busy machine let its lease expire
                second = await consumer.poll(120)
            return [bytes(message.value) for message in (first, second) if message is not None]
        finally:
            await consumer.close()

    async def read_all() -> list[list[bytes]]:
        opening, opened = asyncio.Semaphore(AT_ONCE), asyncio.Barrier(CONSUMERS)
        return await asyncio.gather(*(read(number, opening, opened) for number in range(CONSUMERS)))

    received = asyncio.run(read_all())
    print(f"{CONSUMERS} consumers, {most} threads more than before")
    assert Counter(map(tuple, received)) == {(b"first", b"second"): CONSUMERS}
    assert 1 <= most <= MAX_THREADS
