"""Majorities and single steps of membership."""

from hypothesis import given
from hypothesis import strategies as st

from broker.raft.configuration import (
    ConfigurationChange,
    GroupConfiguration,
    MemberId,
    Step,
    changed,
    initial_configuration,
    majority_index,
)

MEMBERS = [MemberId(n, n) for n in range(1, 8)]


@given(st.lists(st.integers(0, 20), min_size=1, max_size=7))
def test_majority_index_is_held_by_a_majority_and_no_higher_one_is(indexes: list[int]) -> None:
    quorum = len(indexes) // 2 + 1
    index = majority_index(list(indexes), quorum)
    assert sum(1 for i in indexes if i >= index) >= quorum
    assert sum(1 for i in indexes if i > index) < quorum


@given(
    st.lists(st.sampled_from(MEMBERS), min_size=1, unique=True),
    st.lists(st.tuples(st.sampled_from(Step), st.sampled_from(MEMBERS)), max_size=20),
)
def test_majorities_meet_across_every_step(voters: list[MemberId], steps: list[tuple[Step, MemberId]]) -> None:
    configuration = initial_configuration(voters)
    for step, member in steps:
        following = changed(configuration, ConfigurationChange(step, member))
        if isinstance(following, str):
            continue
        everyone = set(configuration.voters) | set(following.voters)
        assert configuration.quorum + following.quorum > len(everyone)
        assert not set(following.voters) & set(following.learners)
        assert list(following.voters) == sorted(following.voters)
        configuration = following
    assert configuration.voters


def test_a_new_incarnation_is_another_member() -> None:
    before = initial_configuration([MemberId(1, 10), MemberId(2, 20), MemberId(3, 30)])
    with_learner = changed(before, ConfigurationChange(Step.ADD_LEARNER, MemberId(3, 31)))
    assert with_learner == GroupConfiguration(before.voters, (MemberId(3, 31),))
    assert changed(before, ConfigurationChange(Step.PROMOTE, MemberId(3, 31))) == "not a learner"
