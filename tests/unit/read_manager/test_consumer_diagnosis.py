"""Why a consumer gets nothing: every reason, and what is true of all of them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from read_manager.consumer_diagnosis import Holder, PartitionFacts, explain_partition, summarize

AT_END = PartitionFacts(0, 5, 0, 0, None, False, 3, 3, (2, 5))
HOLDER = Holder("m-1", "shop", "host-a")


@pytest.mark.parametrize(
    ("facts", "reason", "said"),
    [
        (replace(AT_END, cursor=0, bounds=(0, 0)), "topic_empty", "nothing was ever appended"),
        (AT_END, "at_end", "up to offset 5"),
        (replace(AT_END, holder=HOLDER), "at_end", "up to offset 5"),
        (replace(AT_END, cursor=3), "messages_waiting", "2 messages"),
        (replace(AT_END, given_back=1), "messages_waiting", "1 messages"),
        (replace(AT_END, cursor=3, holder=HOLDER), "held_by_member", "client id shop, host host-a"),
        (replace(AT_END, cursor=3, holder=Holder("m-2")), "held_by_member", "member 'm-2' has the partition"),
        (replace(AT_END, cursor=3, holder=HOLDER, is_revoking=True), "revoking", "has to give the partition up"),
        (replace(AT_END, in_flight=2), "claims_in_flight", "2 messages are on their way"),
        (replace(AT_END, cursor=0), "retention_passed", "offsets 0 to 1 before they were read; 3 messages"),
        (replace(AT_END, cursor=0, bounds=(5, 5)), "retention_passed", "offsets 0 to 4"),
        (replace(AT_END, bounds=None, replicas_alive=1), "no_leader", "1 of 3 replicas"),
    ],
)
def test_reasons(facts: PartitionFacts, reason: str, said: str) -> None:
    explained = explain_partition(facts)
    assert explained.reason == reason
    assert said in explained.text
    assert explained.action


FACTS = st.builds(
    PartitionFacts,
    st.integers(0, 9),
    cursor=st.integers(0, 20),
    given_back=st.integers(0, 2),
    in_flight=st.integers(0, 2),
    holder=st.none() | st.just(HOLDER),
    is_revoking=st.booleans(),
    replicas=st.just(3),
    replicas_alive=st.integers(0, 3),
    bounds=st.none() | st.tuples(st.integers(0, 10), st.integers(10, 20)),
)


@given(FACTS)
def test_a_partition_has_messages_to_read_exactly_if_its_reason_says_so(facts: PartitionFacts) -> None:
    explained = explain_partition(facts)
    with_messages = {"messages_waiting", "held_by_member", "revoking"}
    if explained.reason == "retention_passed":
        assert facts.bounds is not None
        assert facts.cursor < facts.bounds[0]
    elif facts.unread:
        assert explained.reason in with_messages
    else:
        assert explained.reason not in with_messages
    assert (explained.reason == "no_leader") == (facts.bounds is None) == (explained.unread is None)
    if explained.reason in ("held_by_member", "revoking"):
        assert explained.member == HOLDER.member


@given(st.lists(FACTS, min_size=1, max_size=6))
def test_the_summary_is_the_reason_of_a_partition_and_tells_of_what_can_be_read(facts: list[PartitionFacts]) -> None:
    partitions = [explain_partition(replace(each, partition_id=number)) for number, each in enumerate(facts)]
    summary = summarize(partitions)
    reasons = {partition.reason for partition in partitions}
    assert summary.reason in reasons
    if "messages_waiting" in reasons:
        assert summary.reason == "messages_waiting"
    if summary.reason in ("at_end", "topic_empty"):
        assert reasons <= {"at_end", "topic_empty"}
    assert all(reason in summary.text for reason in reasons - {summary.reason})
