"""Ids of events: what was sent is understood, anything else is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from myqueue.protocol.errors import InvalidRequest, TopicReplaced
from myqueue.protocol.event_position import EventPosition, topic_tag
from myqueue.protocol.limits import MAX_EVENT_ID_CHARS

TOPIC = "9f86d081-884c-7d65-9a51-1b7f3f3f9c11"
OFFSET = st.integers(0, (1 << 63) - 1)


@given(st.integers(0, 255), st.lists(OFFSET, min_size=1, max_size=256))
def test_an_id_names_the_offset_of_every_partition(first: int, offsets: list[int]) -> None:
    text = str(EventPosition(topic_tag(TOPIC), first, offsets))
    assert len(text) <= MAX_EVENT_ID_CHARS
    partitions = range(first, first + len(offsets))
    found = EventPosition.parse(text).offsets_in(TOPIC, partitions)
    assert found == dict(zip(partitions, offsets, strict=True))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "2-9f86d081884c7d65-0-1",
        "1-9F86D081884C7D65-0-1",
        "1-9f86d081884c7d65-0-",
        "1-9f86d081884c7d65-0-1.",
        "1-9f86d081884c7d65-0-1..2",
        "1-9f86d081884c7d65-0--1",
        "1-9f86d081884c7d65-0-1\n",
        "1-9f86d081884c7d65-0-9999999999999999999",
        "1-9f86d081884c7d65-0-" + ".".join(["1"] * 257),
        "1-9f86d081884c7d65-0-١",
    ],
)
def test_what_no_server_has_sent_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="event id"):
        EventPosition.parse(text)


def test_ids_of_other_topics_and_partitions() -> None:
    position = EventPosition.parse("1-9f86d081884c7d65-1-7.8")
    assert position.offsets_in(TOPIC, [2]) == {2: 8}
    with pytest.raises(InvalidRequest, match="did not read partition 0"):
        position.offsets_in(TOPIC, [0, 1])
    with pytest.raises(TopicReplaced):
        position.offsets_in("0" * 36, [1])
