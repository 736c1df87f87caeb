"""A producer with several batches of a partition in flight, behind a proxy that delays, reorders and drops."""

import pytest

from myqueue import Admin, Producer, Reader, RetryPolicy
from tests.unreliable_proxy import UnreliableProxy

QUICK = RetryPolicy(deadline_s=60.0, first_pause_s=0.005, longest_pause_s=0.1)


@pytest.mark.parametrize(("partitions", "drop"), [(1, 0.02), (4, 0.05)])
def test_order_is_kept_nothing_doubled_and_nothing_lost(
    url: str, topic_name: str, partitions: int, drop: float
) -> None:
    proxy = UnreliableProxy(url, seed=partitions, delay_s=0.03, drop=0.0)
    sent = [(number % partitions, b"%06d" % number) for number in range(3000)]
    try:
        with Admin(url) as admin:
            admin.create_topic(topic_name, partitions=partitions)
        with Producer(proxy.url, topic_name, batch_bytes=400, max_in_flight=8, retry=QUICK) as producer:
            proxy.drop = drop
            deliveries = [producer.send(value, partition=partition) for partition, value in sent]
            receipts = [delivery.result(100) for delivery in deliveries]
            proxy.drop = 0.0
    finally:
        proxy.close()
    assert proxy.dropped > 3
    with Reader(url, topic_name, dict.fromkeys(range(partitions), 0)) as reader:
        stored: list[list[bytes]] = [[] for _ in range(partitions)]
        for _ in sent:
            message = reader.poll(20)
            assert message is not None
            stored[message.partition].append(message.value)
        assert reader.poll(1) is None
    assert stored == [[value for place, value in sent if place == partition] for partition in range(partitions)]
    for receipt, (partition, value) in zip(receipts, sent, strict=True):
        assert receipt.partition == partition
        assert stored[partition][receipt.offset] == value
