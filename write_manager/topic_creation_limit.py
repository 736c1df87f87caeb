"""How many topics one client address may create by registering producers: a token bucket for each address.

Whoever names a topic that does not exist creates it, so that a program with a wrong name in a loop, or somebody who
means no good, could fill the cluster's partitions within seconds.
"""

from collections import OrderedDict
from dataclasses import dataclass

MAX_ADDRESSES = 10_000


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at_s: float  # when it had them


class TopicCreationLimit:
    def __init__(self, per_minute: int, *, max_addresses: int = MAX_ADDRESSES) -> None:
        """Addresses beyond `max_addresses` push out the one that was not heard of for the longest time."""
        self._capacity = per_minute
        self._tokens_per_s = per_minute / 60
        self._max_addresses = max_addresses
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()  # the one heard of last is the last one

    def wait_s(self, address: str, now_s: float) -> float:
        """0 when the address may create one more topic, which is counted; else how long until it may."""
        bucket = self._buckets.setdefault(address, _Bucket(self._capacity, now_s))
        self._buckets.move_to_end(address)
        bucket.tokens = min(self._capacity, bucket.tokens + max(0.0, now_s - bucket.at_s) * self._tokens_per_s)
        bucket.at_s = max(bucket.at_s, now_s)
        self._forget(now_s)
        if bucket.tokens >= 1:
            bucket.tokens -= 1
            return 0.0
        return (1 - bucket.tokens) / self._tokens_per_s

    def _forget(self, now_s: float) -> None:
        """After a minute a bucket is full, which is what an unknown address has."""
        while self._buckets:
            oldest = next(iter(self._buckets.values()))
            if len(self._buckets) <= self._max_addresses and now_s - oldest.at_s < 60:
                return
            self._buckets.popitem(last=False)

    def __len__(self) -> int:
        return len(self._buckets)
