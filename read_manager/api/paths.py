"""What stands in the paths: names and numbers, checked."""

from myqueue.protocol.errors import ConsumerNotFound, InvalidRequest, PartitionNotFound
from myqueue.protocol.limits import topic_name_problem
from myqueue.protocol.models import MAX_ID


def topic_name(text: str) -> str:
    problem = topic_name_problem(text)
    if problem is not None:
        raise InvalidRequest(f"topic: {problem}")
    return text


def partition_id(text: str) -> int:
    number = _number(text, "partition_id")
    if number > MAX_ID:
        raise PartitionNotFound()
    return number


def consumer_id(text: str) -> int:
    number = _number(text, "consumer_id")
    if number > MAX_ID:
        raise ConsumerNotFound()
    return number


def _number(text: str, name: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 19):
        raise InvalidRequest(f"{name}: must be a number")
    return int(text)
