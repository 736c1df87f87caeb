"""The senders of a producer, one for each topic it sends to, opened on first use; and what becomes of them in a child.

A fork copies a producer without its threads. What the parent had sent and not decided stays the parent's: its copies in
the child fail. A producer without a name opens itself anew in the child, under another name of its own. One with a name
cannot: parent and child would fence each other.
"""

import threading
import uuid
from dataclasses import dataclass

from myqueue.argument_checks import check_topic
from myqueue.delivery import BatchResult
from myqueue.process_shared import process_id, tell_after_fork
from myqueue.protocol.errors import MyQueueError, Unavailable
from myqueue.send_buffer import SendBuffer
from myqueue.send_threads import SendThreadPool, send_thread_pools
from myqueue.sender import OnDelivery, Sender
from myqueue.transport import RetryPolicy, Timeouts, Transport

_STOP_S = 1.0


class ProducerClosed(MyQueueError, RuntimeError):
    """The producer was closed; nothing can be sent with it."""

    error_code, http_status, default_message = 40001, 400, "the producer is closed"
    default_outcome = "not_written"


class ForkedProducer(MyQueueError, RuntimeError):
    """A named producer that was opened before a fork cannot be used in the child process."""

    error_code, http_status, default_message = 40001, 400, "the producer belongs to the parent process"
    default_outcome = "not_written"


@dataclass(frozen=True, slots=True)
class SenderSettings:
    """Of each topic's sender."""

    create: bool
    codec: int
    batch_bytes: int
    linger_s: float
    max_in_flight: int
    delivery_timeout_s: float
    on_delivery: OnDelivery | None


class TopicSenders:
    """May be shared by threads. `senders` has those that are open: a look at it takes no lock."""

    def __init__(
        self,
        url: str | None,
        name: str | None,
        buffer_bytes: int,
        settings: SenderSettings,
        *,
        retry: RetryPolicy,
        timeouts: Timeouts,
    ) -> None:
        self.transport = Transport(url, timeouts=timeouts, retry=retry)
        self.buffer = SendBuffer(buffer_bytes)
        self.senders: dict[str, Sender] = {}
        self.closed = False
        self.named = name is not None
        self.name = name or _new_name()
        self.process_id = process_id()
        self._settings = settings
        self._opening = threading.Lock()
        self._pool: SendThreadPool | None = None
        tell_after_fork(self)

    def open(self, topic: str) -> Sender:
        """Registers the producer's name with the topic, unless that is done."""
        check_topic(topic)
        self.check_usable()
        with self._opening:
            self.check_usable()  # it may have been closed meanwhile
            if topic not in self.senders:
                sender = self._open(topic)
                with self.buffer.lock:
                    sender.refusing = sender.refusing or self.closed
                    self.senders[topic] = sender
            return self.senders[topic]

    def _open(self, topic: str) -> Sender:
        if self.process_id != process_id():
            self.process_id, self.name = process_id(), _new_name()
        if self._pool is None:
            self._pool = send_thread_pools.acquire(self.transport.url)
            self._pool.add_producer(self._settings.max_in_flight)
        settings = self._settings
        return Sender(
            self.transport,
            topic,
            self.name,
            self.buffer,
            self._pool,
            create=settings.create,
            codec=settings.codec,
            batch_bytes=settings.batch_bytes,
            linger_s=settings.linger_s,
            max_in_flight=settings.max_in_flight,
            delivery_timeout_s=settings.delivery_timeout_s,
            on_delivery=settings.on_delivery,
        )

    def check_usable(self) -> None:
        """Raises if nothing can be sent any more."""
        if self.closed:
            raise ProducerClosed(f"the producer {self.name!r} is closed: open another one")
        if self.named and self.process_id != process_id():
            raise ForkedProducer(
                f"producer {self.name!r} was opened by process {self.process_id}, and this is its child"
                f" {process_id()}: two processes that send under one name fence each other. Open a Producer in the"
                " child, under a name of its own or without one"
            )

    # `begin_flush`, `drained`, `incomplete`, `take_failed`: with the buffer's lock held.

    def begin_flush(self) -> "list[Sender]":
        """The senders whose batches do not linger until `end_flush`."""
        flushed = list(self.senders.values())
        for sender in flushed:
            sender.begin_flush()
        return flushed

    def drained(self) -> bool:
        return all(sender.drained for sender in self.senders.values())

    def incomplete(self) -> int:
        """Messages."""
        return sum(sender.incomplete for sender in self.senders.values())

    def take_failed(self) -> list[BatchResult]:
        """The batches that failed since the last call and whose errors nobody has seen."""
        failed = [result for sender in self.senders.values() for result in sender.take_failed()]
        return [result for result in failed if result.unretrieved]

    def begin_close(self) -> bool:
        """Refuses new messages; False if that was done before."""
        with self.buffer.lock:
            if self.closed:
                return False
            self.closed = True
            for sender in self.senders.values():
                sender.refusing = True
            self.buffer.notify()
            return True

    def stop(self) -> None:
        """Fails what is not decided, and gives the threads back."""
        self.transport.close()  # a topic that is being opened is not waited for
        with self._opening:
            for sender in self.senders.values():
                sender.abandon()
            with self.buffer.lock:  # longer only while an abandoned attempt waits for its response
                self.buffer.changed.wait_for(lambda: self.buffer.busy == 0, _STOP_S)
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.remove_producer()
            send_thread_pools.release(self.transport.url, pool)

    def retire(self) -> None:
        """Sends what is left of a producer that nobody refers to any more."""
        if self.begin_close():
            with self.buffer.lock:
                self.begin_flush()
                self.buffer.changed.wait_for(self.drained, self._settings.delivery_timeout_s + 5)
            self.stop()

    def forget_parent(self) -> None:
        """In a child process: locks may be held by threads that are not here, and sockets are the parent's, too."""
        for topic, sender in list(self.senders.items()):
            lost = Unavailable(
                f"the message to {topic!r} was sent by process {self.process_id}, before it forked this one: only it"
                " gets the outcome",
                outcome="unknown",
            )
            sender.fail_after_fork(lost)
        self.senders.clear()
        self.buffer = SendBuffer(self.buffer.limit)
        self.transport = Transport(self.transport.url, timeouts=self.transport.timeouts, retry=self.transport.retry)
        self._opening = threading.Lock()
        self._pool = None


def _new_name() -> str:
    """A name of its own makes registering safe to repeat."""
    return f"producer-{uuid.uuid4().hex}"
