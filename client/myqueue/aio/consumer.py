"""AsyncConsumer: as `myqueue.Consumer`, in an event loop. The background thread of the process does its requests."""

from collections.abc import AsyncIterator, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

from myqueue.client_reprs import consumer_repr
from myqueue.consumer_core import ConsumerClosed, ConsumerCore
from myqueue.consumer_waits import LoopWaits
from myqueue.descriptions import Lag
from myqueue.dropped_consumer import give_back
from myqueue.message import Message
from myqueue.poll_interval import DEFAULT_MAX_POLL_INTERVAL_S
from myqueue.rebalance_listener import AsyncRebalanceCallback
from myqueue.serialization import Deserializer
from myqueue.start_position import Start
from myqueue.topic_discovery import DEFAULT_METADATA_MAX_AGE_S
from myqueue.topic_subscription import EVERYTHING, Committed, Offsets, Partition, Topics, TopicSubscription
from myqueue.transport import DEFAULT_RETRY, DEFAULT_TIMEOUTS, RetryPolicy, Timeouts

if TYPE_CHECKING:
    import pyarrow as pa


class AsyncConsumer:
    """A named position in one or several topics, with the same guarantees as `Consumer`.

    Opened by `async with` or `await open()`. A call that is cancelled takes no messages: the next one gets them. One
    task reads at a time.
    """

    def __init__(
        self,
        url: str | None = None,
        topic: Topics = "",
        name: str | None = None,
        partition: int | None = None,
        start: Start = "latest",
        *,
        commit: Literal["auto", "manual"] = "auto",
        on_gap: Literal["skip", "error"] = "skip",
        on_assign: AsyncRebalanceCallback | None = None,
        on_revoke: AsyncRebalanceCallback | None = None,
        on_lost: AsyncRebalanceCallback | None = None,
        max_poll_interval_s: float = DEFAULT_MAX_POLL_INTERVAL_S,
        metadata_max_age_s: float = DEFAULT_METADATA_MAX_AGE_S,
        client_id: str | None = None,
        prefetch_bytes: int = 16 << 20,
        fetch_bytes: int = 4 << 20,
        value_deserializer: Deserializer | None = None,
        retry: RetryPolicy = DEFAULT_RETRY,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
    ) -> None:
        """`topic`: a name, a list of names, or a compiled pattern, as for `Consumer`.

        `start` counts only when the name is new. `on_gap`: what to do when retention has passed by. `client_id`
        tells people which process reads; by default the script's name and the process id.

        `on_assign`, `on_revoke` and `on_lost`, functions or coroutine functions, get a list of TopicPartition, inside a
        call that asks for messages: as those of `Consumer`, as is `max_poll_interval_s`.

        `value_deserializer` makes `message.value` of the bytes. Where it fails, a read raises DeserializationError, and
        the next one goes on behind that message.
        """
        self._core = ConsumerCore(
            LoopWaits(),
            url,
            TopicSubscription(topic),
            name,
            partition,
            start,
            commit=commit,
            on_gap=on_gap,
            on_assign=on_assign,
            on_revoke=on_revoke,
            on_lost=on_lost,
            max_poll_interval_s=max_poll_interval_s,
            metadata_max_age_s=metadata_max_age_s,
            client_id=client_id,
            prefetch_bytes=prefetch_bytes,
            fetch_bytes=fetch_bytes,
            value_deserializer=value_deserializer,
            retry=retry,
            timeouts=timeouts,
        )
        self.topic = self._core.topic
        self.name = self._core.name
        self.partition = partition
        self.member, self.client_id = self._core.member, self._core.client_id

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that it is subscribed to; of a pattern, those that it matches at the moment."""
        return self._core.topics

    @property
    def consumer_id(self) -> int:
        """Of the topic, if there is one; see `consumer_ids`."""
        return self._core.consumer_id

    @property
    def consumer_ids(self) -> dict[str, int]:
        """By topic: a name has an id in each."""
        return self._core.consumer_ids

    @property
    def skipped(self) -> int:
        """Messages that retention had deleted before they were read."""
        return self._core.skipped

    async def open(self) -> Self:
        """Registers the consumer."""
        await self._core.open()
        return self

    def __repr__(self) -> str:
        return consumer_repr(type(self).__name__, self._core)

    # Reading

    async def poll(self, timeout: float | None = None) -> Message | None:
        """The next message; None if none came within `timeout` seconds, or the consumer was closed meanwhile.

        Without a timeout it waits until there is one. `poll(0)` asks the cluster: None means that there is nothing to
        read right now. An error that lasts longer than the retry policy's deadline is raised.
        """
        message = next(self._core.messages, None)
        return await self._core.next_message(timeout) if message is None else message

    async def poll_many(
        self,
        max_messages: int = 500,
        timeout: float | None = None,
    ) -> list[Message]:
        """Waits until there is a message, at most `timeout` seconds, and takes what is there, up to `max_messages`."""
        return await self._core.next_messages(max_messages, timeout)

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Waits for more until the consumer is closed."""
        self._core.check_usable()
        try:
            while (message := await self.poll()) is not None:
                yield message
                for following in self._core.messages:
                    yield following
        except ConsumerClosed:
            return

    async def fetch_arrow(
        self,
        max_messages: int = 100_000,
        timeout: float | None = None,
    ) -> "pa.Table":
        """Messages as a table of partition, offset, timestamp, key, value and headers, in each partition's order.

        Waits until there is something, at most `timeout` seconds, and takes what is there then, up to `max_messages`.
        """
        return await self._core.next_table(max_messages, timeout)

    def pause(self, partitions: Iterable[Partition]) -> None:
        """Hands out nothing of these partitions until `resume`, or until they were leased to another process.

        They are fetched ahead all the same.
        """
        self._core.pause(partitions)

    def resume(self, partitions: Iterable[Partition]) -> None:
        """Hands out messages of these partitions again. May come from another task than the one that reads."""
        self._core.resume(partitions)

    # Positions

    async def commit(self, what: Committed = EVERYTHING, *, wait: bool = True) -> Offsets:
        """As `Consumer.commit`: past everything that was handed out, past the given messages, or to given offsets.

        With `wait=False` the offsets are sent in the background, and an error is raised by the next call.
        """
        return await self._core.commit(what, wait=wait)

    async def seek(self, partition: Partition | None = None, *, to: int | Start) -> Offsets:
        """Goes to an offset, `"earliest"`, `"latest"` or `{"timestamp": ms}`, for all processes of this name."""
        return await self._core.seek(partition, to)

    def position(self) -> Offsets:
        """The next offset to hand out, of each partition that this process has on lease."""
        return self._core.position()

    async def size(self) -> int:
        """Messages that were not handed out yet, to any process of this name as far as it has committed."""
        return await self._core.size()

    async def lag(self) -> Lag:
        return await self._core.lag()

    # Ending

    async def close(self) -> None:
        """Commits what was handed out (with `commit="auto"`), gives the partitions back, and ends iterations.

        From another task than the one that reads, messages in flight are not committed: they may be half processed.
        """
        await self._core.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._core.close(error)

    def __del__(self) -> None:
        give_back(self.__dict__.get("_core"))
