"""Parameters in paths, checked."""

from myqueue.protocol.errors import ConsumerNotFound, InvalidRequest
from myqueue.protocol.models import MAX_ID


def checked_consumer_id(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 19):
        raise InvalidRequest("consumer_id: must be a number")
    if int(text) > MAX_ID:
        raise ConsumerNotFound()
    return int(text)
