"""Batches of a few messages, encoded without Arrow's builders; messages with headers and large batches, with them."""

from collections.abc import Sequence
from uuid import UUID

from myqueue.protocol import batch as protocol_batch
from myqueue.protocol.batch import Message
from myqueue.protocol.small_batch import FEW, encode_few


def encode_batch(topic_id: UUID, partition_id: int, messages: Sequence[Message]) -> bytes:
    """The same as protocol.batch.encode: header and body, offsets not yet set."""
    if len(messages) > FEW or any(message.headers for message in messages):
        return protocol_batch.encode(topic_id, partition_id, messages)
    keys, values, timestamps = (
        [message.key for message in messages],
        [message.value for message in messages],
        [message.timestamp for message in messages],
    )
    body = encode_few(keys, values, timestamps)
    return protocol_batch.header_for(topic_id, partition_id, body, len(messages)).pack() + body
