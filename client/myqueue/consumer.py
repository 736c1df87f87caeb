"""Consumer: reads a topic, several, or one partition, from where its name has got to."""

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

from myqueue.client_reprs import consumer_repr
from myqueue.consumer_core import ConsumerClosed, ConsumerCore
from myqueue.consumer_waits import BlockingWaits, NotifiedWaits, run_blocking
from myqueue.descriptions import Lag
from myqueue.dropped_consumer import give_back
from myqueue.message import Message
from myqueue.poll_interval import DEFAULT_MAX_POLL_INTERVAL_S
from myqueue.rebalance_listener import RebalanceCallback, check_not_coroutine
from myqueue.serialization import Deserializer
from myqueue.start_position import Start
from myqueue.topic_discovery import DEFAULT_METADATA_MAX_AGE_S
from myqueue.topic_subscription import EVERYTHING, Committed, Offsets, Partition, Topics, TopicSubscription
from myqueue.transport import DEFAULT_RETRY, DEFAULT_TIMEOUTS, RetryPolicy, Timeouts

if TYPE_CHECKING:
    import pyarrow as pa


class Consumer:
    """A named position in one or several topics. Those with the same name, in any process, split a topic's partitions.

    A partition is leased to one of them at a time. Messages are fetched ahead in the background and handed out in the
    order of their partition. What was handed out counts as handled when the next is asked for; with `commit="auto"`
    the cursor follows every second, so that a process that dies has some messages delivered again, and none is lost.
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
        on_assign: RebalanceCallback | None = None,
        on_revoke: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
        max_poll_interval_s: float = DEFAULT_MAX_POLL_INTERVAL_S,
        metadata_max_age_s: float = DEFAULT_METADATA_MAX_AGE_S,
        client_id: str | None = None,
        prefetch_bytes: int = 16 << 20,
        fetch_bytes: int = 4 << 20,
        value_deserializer: Deserializer | None = None,
        retry: RetryPolicy = DEFAULT_RETRY,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
    ) -> None:
        """`topic`: a name, a list of names, or a compiled pattern for whole names. Topics that match it are looked for
        every `metadata_max_age_s`, and read from `start` on. A partition is a number in calls and results if `topic` is
        a name, and a TopicPartition otherwise.

        `start` counts only when the name is new. `on_gap`: what to do when retention has passed by. `client_id`
        tells people which process reads; by default the script's name and the process id.

        `on_assign`, `on_revoke` and `on_lost` get a list of TopicPartition, inside a call that asks for messages: when
        partitions have come; when they are about to go, and may still be committed; when they are gone (if not given,
        on_revoke). After `max_poll_interval_s` without such a call the member loses its partitions, and the next call
        raises MaxPollIntervalExceeded.

        `value_deserializer` makes `message.value` of the bytes. Where it fails, a read raises DeserializationError, and
        the next one goes on behind that message.
        """
        check_not_coroutine(on_assign=on_assign, on_revoke=on_revoke, on_lost=on_lost)
        subscribed = TopicSubscription(topic)
        self._core = ConsumerCore(
            BlockingWaits() if subscribed.only is not None else NotifiedWaits(),
            url,
            subscribed,
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
        run_blocking(self._core.open())

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

    def __repr__(self) -> str:
        return consumer_repr(type(self).__name__, self._core)

    # Reading

    def poll(self, timeout: float | None = None) -> Message | None:
        """The next message; None if none came within `timeout` seconds, or the consumer was closed meanwhile.

        Without a timeout it waits until there is one. `poll(0)` asks the cluster: None means that there is nothing to
        read right now. An error that lasts longer than the retry policy's deadline is raised.
        """
        message = next(self._core.messages, None)
        return run_blocking(self._core.next_message(timeout)) if message is None else message

    def poll_many(self, max_messages: int = 500, timeout: float | None = None) -> list[Message]:
        """Waits until there is a message, at most `timeout` seconds, and takes what is there, up to `max_messages`."""
        return run_blocking(self._core.next_messages(max_messages, timeout))

    def get_message(self) -> Message | None:
        """The next message, or None if there is none right now."""
        return self.poll(0)

    def __iter__(self) -> Iterator[Message]:
        """Waits for more until the consumer is closed."""
        self._core.check_usable()
        try:
            while (message := self.poll()) is not None:
                yield message
                yield from self._core.messages
        except ConsumerClosed:
            return

    def fetch_arrow(self, max_messages: int = 100_000, timeout: float | None = None) -> "pa.Table":
        """Messages as a table of partition, offset, timestamp, key, value and headers, in each partition's order.

        Waits until there is something, at most `timeout` seconds, and takes what is there then, up to `max_messages`.
        """
        return run_blocking(self._core.next_table(max_messages, timeout))

    def pause(self, partitions: Iterable[Partition]) -> None:
        """Hands out nothing of these partitions until `resume`, or until they were leased to another process.

        They are fetched ahead all the same. Call it from the thread that reads.
        """
        self._core.pause(partitions)

    def resume(self, partitions: Iterable[Partition]) -> None:
        """Hands out messages of these partitions again. May come from another thread than the one that reads."""
        self._core.resume(partitions)

    # Positions

    def commit(self, what: Committed = EVERYTHING, *, wait: bool = True) -> Offsets:
        """Moves the cursor, so that what lies before it is not delivered again; the cursors after that.

        Past everything that was handed out, past the given messages, or to the given `{partition: next offset}`. Raises
        StaleLease if another process has the partition by now: it will read those messages again.

        With `wait=False` it returns the offsets at once. They are sent in the background, one request at a time, with
        the newest offset of each partition; `close` waits for the last one. An error is raised by the next call that
        reads or commits.
        """
        return run_blocking(self._core.commit(what, wait=wait))

    def seek(self, partition: Partition | None = None, *, to: int | Start) -> Offsets:
        """Goes to an offset, `"earliest"`, `"latest"` or `{"timestamp": ms}`, also back, in one partition or in all.

        Counts for all processes of this name. The cursors after that.
        """
        return run_blocking(self._core.seek(partition, to))

    def position(self) -> Offsets:
        """The next offset to hand out, of each partition that this process has on lease."""
        return self._core.position()

    def size(self) -> int:
        """Messages that were not handed out yet, to any process of this name as far as it has committed."""
        return run_blocking(self._core.size())

    def lag(self) -> Lag:
        return run_blocking(self._core.lag())

    # Ending

    def close(self) -> None:
        """Commits what was handed out (with `commit="auto"`), gives the partitions back, and ends iterations.

        From another thread than the one that reads, messages in flight are not committed: they may be half processed.
        """
        run_blocking(self._core.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run_blocking(self._core.close(error))

    def __del__(self) -> None:
        give_back(self.__dict__.get("_core"))
