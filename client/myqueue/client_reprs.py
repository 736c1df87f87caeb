"""What clients and deliveries show of themselves in a shell, a debugger and a log: topic, place and state."""

from typing import TYPE_CHECKING

from myqueue.process_shared import process_id

if TYPE_CHECKING:
    from myqueue.consumer_core import ConsumerCore
    from myqueue.delivery import BatchResult
    from myqueue.topic_senders import TopicSenders


def shown(kind: str, state: str, **about: object) -> str:
    """Such as `<Consumer topic='orders' name='billing' url='http://localhost' open>`; what is None is left out."""
    words = [f"{name}={value!r}" for name, value in about.items() if value is not None]
    return f"<{' '.join([kind, *words])} {state}>"


def producer_repr(kind: str, topic: str | None, topics: "TopicSenders") -> str:
    if topics.closed:
        state = "closed"
    elif topics.process_id != process_id():
        state = f"of process {topics.process_id}"
    elif any(sender.fatal is not None for sender in list(topics.senders.values())):
        state = "fenced"
    elif topics.senders:
        state = "open"
    else:
        state = "opens with the first message"
    others = sorted(set(topics.senders) - {topic}) or None
    return shown(kind, state, topic=topic, other_topics=others, name=topics.name, url=topics.transport.url)


def consumer_repr(kind: str, core: "ConsumerCore") -> str:
    """The partitions are those that it has on lease."""
    leased = None
    if core._process_id != process_id():
        state = f"of process {core._process_id}"
    elif not core.is_open():
        state = "closed"
    elif not core.is_registered:
        state = "not open yet"
    else:
        state = "open"
        leased = sorted(core.position()) if core.has_leases() else None
    return shown(kind, state, topic=core.topic, name=core.name, partitions=leased, url=core._transport.url)


def delivery_repr(result: "BatchResult", index: int) -> str:
    if not result.done:
        return shown("Delivery", "not decided yet", topic=result.topic)
    if result.error is not None:
        return shown("Delivery", f"failed: {result.error!r}", topic=result.topic)
    offset = result.base_offset + index
    return shown("Delivery", "stored", topic=result.topic, partition=result.partition, offset=offset)
