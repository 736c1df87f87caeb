"""Values of messages as what a consumer's deserializer makes of them.

A message whose value cannot be converted counts as handed out when its error is raised: not before, so that no commit
passes a message that the application has not heard of, and then for good, so that the next read goes on behind it.
"""

import threading
from collections.abc import Iterator, Sequence
from typing import Self

from myqueue.argument_checks import WrongType
from myqueue.decoding import Messages
from myqueue.message import Message
from myqueue.serialization import Deserializer, SerializationError
from myqueue.subscription_state import InFlight


class DeserializationError(SerializationError):
    """The consumer's deserializer has failed; `raw` is the message with its value as bytes."""

    raw: Message

    @classmethod
    def of(cls, raw: Message, cause: Exception) -> Self:
        """No constructor of its own: an error that a worker process sends to its parent is made anew of its text."""
        error = cls(
            f"the value of message {raw.offset} of partition {raw.partition} of topic {raw.topic!r} cannot be"
            f" deserialized: {str(cause) or type(cause).__name__}",
            details={"topic": raw.topic, "partition_id": raw.partition, "offset": raw.offset},
        )
        error.raw = raw
        return error


class RawValues:
    """Without a deserializer."""

    def iterator(self, messages: Messages) -> Iterator[Message]:
        return messages.iterator

    def messages(self, handed: Sequence[InFlight], lock: threading.Lock) -> list[Message]:  # noqa: ARG002
        """Messages of whole chunks that were handed out."""
        messages: list[Message] = []
        for in_flight in handed:
            messages += Messages(in_flight.subscription.topic, in_flight.chunk).iterator
        return messages


class DeserializedValues(RawValues):
    def __init__(self, deserialize: Deserializer) -> None:
        self._deserialize = deserialize

    def iterator(self, messages: Messages) -> Iterator[Message]:
        """Goes on after an error."""
        return map(self._deserialized, messages.iterator)

    def _deserialized(self, raw: Message) -> Message:
        try:
            value = self._deserialize(raw.value)
        except Exception as error:
            raise DeserializationError.of(raw, error) from error
        return tuple.__new__(Message, (raw.topic, value, *raw[2:]))

    def messages(self, handed: Sequence[InFlight], lock: threading.Lock) -> list[Message]:
        """Up to the first that fails; what comes after it goes back.

        If it is the first of all, its error is raised. Otherwise it goes back as well, to be the first of the next
        call. The lock is not held while the deserializer runs: it may take long.
        """
        messages: list[Message] = []
        counts = [0] * len(handed)  # of messages that are handed out, of each chunk
        try:
            for index, in_flight in enumerate(handed):
                for raw in Messages(in_flight.subscription.topic, in_flight.chunk).iterator:
                    messages.append(self._deserialized(raw))
                    counts[index] += 1
        except DeserializationError:
            if not messages:
                counts[0] = 1
                raise
        except BaseException:  # an interrupt: the application gets none of them
            counts = [0] * len(handed)
            raise
        finally:
            with lock:
                for in_flight, count in reversed(list(zip(handed, counts, strict=True))):
                    _hand_back(in_flight, count)
        return messages


def values_by(deserializer: Deserializer | None) -> RawValues:
    if deserializer is None:
        return RawValues()
    if not callable(deserializer):
        raise WrongType("value_deserializer must be a function from bytes to a value")
    return DeserializedValues(deserializer)


def _hand_back(handed: InFlight, count: int) -> None:
    """All but the first `count` messages, to be handed out next; the lock is held."""
    subscription = handed.subscription
    if count == handed.size or not subscription.withdraw(handed):
        return  # all were taken; or the partition was sought or lost meanwhile
    state, rest = handed.state, handed.chunk.rest(count)
    state.position = rest.first
    if count > 0:
        subscription.hand_out(state, handed.chunk.start(count), None)
    if state.revoking:
        state.drop_prefetched()  # the member that gets the partition reads them
    else:
        subscription.put_back(state, rest)
