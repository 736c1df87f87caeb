"""What a consumer subscribes to: its forms, the partitions that calls name, and whose turn it is among topics."""

import re
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from myqueue import InvalidRequest, Message, TopicPartition
from myqueue.topic_subscription import TopicRotation, TopicSubscription

NAMES = st.sampled_from(["orders", "bills", "orders.new", "orders.old"])
OFFSETS = st.dictionaries(st.builds(TopicPartition, NAMES, st.integers(0, 3)), st.integers(0, 9), max_size=6)


def message(topic: str, partition: int, offset: int) -> Message:
    return Message(topic, b"", None, partition, offset, 0)


def test_the_forms_of_a_subscription() -> None:
    one, several = TopicSubscription("orders"), TopicSubscription(["orders", "bills", "orders"])
    pattern = TopicSubscription(re.compile(r"orders\..*"))
    assert (one.topics, one.only, one.by_number, str(one)) == (("orders",), "orders", True, "orders")
    assert (several.topics, several.only, several.by_number) == (("orders", "bills"), None, False)
    assert str(several) == "orders, bills"
    assert (pattern.topics, pattern.only, pattern.by_number, str(pattern)) == ((), None, False, r"orders\..*")
    assert TopicSubscription(("orders",)).only == "orders"


@pytest.mark.parametrize("topic", ["", [], [""], ["a", 3], {"a"}, b"a", 7, None, re.compile(b"a")])
def test_what_is_no_subscription(topic: Any) -> None:
    with pytest.raises(TypeError, match="topic"):
        TopicSubscription(topic)


def test_a_pattern_is_for_whole_names_and_never_for_staging() -> None:
    listed = ["orders.new", "orders", "my.orders.new", "_staged.orders.x", "orders.old"]
    assert TopicSubscription(re.compile(r"orders\..*")).matching(listed) == {"orders.new", "orders.old"}
    assert TopicSubscription(re.compile(r".*")).matching(listed) == set(listed) - {"_staged.orders.x"}


@given(OFFSETS)
def test_offsets_are_split_by_topic_and_put_together_again(offsets: dict[TopicPartition, int]) -> None:
    several = TopicSubscription(["orders", "bills", "orders.new", "orders.old"])
    assert several.keyed(several.offsets_by_topic(offsets)) == offsets
    numbers = {place.partition: offset for place, offset in offsets.items()}
    one = TopicSubscription("orders")
    assert one.keyed(one.offsets_by_topic(numbers)) == numbers


@given(st.lists(st.builds(message, NAMES, st.integers(0, 2), st.integers(0, 9))))
def test_messages_are_committed_past_the_last_of_each_partition(messages: list[Message]) -> None:
    pattern = TopicSubscription(re.compile(".*"))
    expected: dict[TopicPartition, int] = {}
    for one in messages:
        place = TopicPartition(one.topic, one.partition)
        expected[place] = max(expected.get(place, 0), one.offset + 1)
    assert pattern.keyed(pattern.offsets_behind(messages)) == expected


def test_a_number_is_enough_where_there_is_one_topic() -> None:
    for one in (TopicSubscription("orders"), TopicSubscription(["orders"])):
        assert one.resolve(2) == one.resolve(TopicPartition("orders", 2)) == TopicPartition("orders", 2)
        with pytest.raises(InvalidRequest, match="'bills' is not subscribed, but orders"):
            one.resolve(TopicPartition("bills", 0))
        with pytest.raises(InvalidRequest, match="'bills', which is not subscribed"):
            one.offsets_behind(message("bills", 0, 0))
    assert TopicSubscription("orders").keyed({"orders": {2: 5}}) == {2: 5}
    assert TopicSubscription(["orders"]).keyed({"orders": {2: 5}}) == {TopicPartition("orders", 2): 5}


@pytest.mark.parametrize("topic", [["orders", "bills"], re.compile("orders")])
def test_where_there_are_several_a_number_is_refused(topic: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"partition 2: several topics .* TopicPartition\(topic, 2\)"):
        TopicSubscription(topic).by_topic([2])
    with pytest.raises(InvalidRequest, match=r"must be an int, not str \('orders'\)"):
        TopicSubscription(topic).by_topic(TopicPartition("orders", 2))


@dataclass(eq=False)
class Topic:
    topic: str
    messages: int = 0


@given(
    amounts=st.lists(st.integers(0, 20), min_size=2, max_size=5),
    steps=st.lists(st.sampled_from(["take", "take", "take", "put", "leave"]), min_size=10, max_size=60),
    data=st.data(),
)
def test_no_topic_waits_for_longer_than_a_round(amounts: list[int], steps: list[str], data: st.DataObject) -> None:
    rotation: TopicRotation[Topic] = TopicRotation()
    for number, amount in enumerate(amounts):
        rotation.add(Topic(str(number), amount))
    waits: dict[Topic, int] = {topic: 0 for topic in rotation if topic.messages}  # while others were served
    for step in steps:
        if step == "take":
            served = next((topic for topic in rotation if topic.messages), None)
            if served is None:
                continue
            served.messages -= 1
            rotation.served(served)
            waits = {topic: 0 if topic is served else waits.get(topic, 0) + 1 for topic in rotation if topic.messages}
            assert max(waits.values(), default=0) < len(amounts)
            continue
        topic = rotation.get(str(data.draw(st.integers(0, len(amounts) - 1))))
        if topic is not None and step == "put":
            topic.messages += 1
        elif topic is not None:
            rotation.remove(topic)
            assert rotation.get(topic.topic) is None
    assert len({topic.topic for topic in rotation}) == len(rotation)


def test_a_new_topic_comes_first() -> None:
    rotation: TopicRotation[Topic] = TopicRotation()
    old, new = Topic("old"), Topic("new")
    rotation.add(old)
    rotation.add(new)
    assert list(rotation) == [new, old]
    rotation.served(new)
    assert list(rotation) == [old, new]
