"""Members: every step is allowed, and the steps end where the catalog wants them."""

from hypothesis import given
from hypothesis import strategies as st

from myqueue.protocol.internal import Configuration, MemberChange, MemberName
from write_manager.members import next_change


def member(broker_id: int, incarnation: str = "a") -> MemberName:
    return {"broker_id": broker_id, "incarnation": incarnation}


def group(voters: list[MemberName], learners: list[MemberName] | None = None, index: int = 7) -> Configuration:
    return {"index": index, "voters": voters, "learners": learners or []}


def after(configuration: Configuration, change: MemberChange) -> Configuration:
    one = change["member"]
    voters = [m for m in configuration["voters"] if m != one]
    learners = [m for m in configuration["learners"] if m != one]
    if change["step"] == "add_learner":
        assert one not in configuration["voters"] + configuration["learners"]
        learners.append(one)
    elif change["step"] == "promote":
        assert one in configuration["learners"]
        voters.append(one)
    return {"index": configuration["index"] + 1, "voters": voters, "learners": learners}


def test_nothing_to_do() -> None:
    voters = [member(1), member(2), member(3)]
    assert next_change([1, 2, 3], group(voters), {1: "a", 2: "a", 3: "a"}) is None


def test_a_broker_that_is_away_is_not_replaced() -> None:
    voters = [member(1), member(2), member(3)]
    assert next_change([1, 2, 3], group(voters), {1: "a", 2: "a"}) is None


def test_lost_data_comes_back_as_a_learner_the_old_member_goes_and_the_learner_votes() -> None:
    configuration = group([member(1), member(2), member(3)])
    present = {1: "a", 2: "a", 3: "b"}
    steps = []
    while (change := next_change([1, 2, 3], configuration, present)) is not None:
        assert change["expected"] == configuration["index"]
        steps.append((change["step"], change["member"]["broker_id"], change["member"]["incarnation"]))
        configuration = after(configuration, change)
    assert steps == [("add_learner", 3, "b"), ("remove", 3, "a"), ("promote", 3, "b")]


@given(
    st.sets(st.integers(1, 5), min_size=1),
    st.sets(st.integers(1, 5), min_size=1),
    st.sets(st.integers(1, 5)),
    st.sets(st.integers(1, 5)),
)
def test_steps_end_with_the_wanted_members(
    wanted: set[int], founders: set[int], reborn: set[int], away: set[int]
) -> None:
    configuration = group([member(b) for b in sorted(founders)])
    present = {b: "b" if b in reborn else "a" for b in wanted if b not in away}
    for _ in range(30):
        change = next_change(sorted(wanted), configuration, present)
        if change is None:
            break
        configuration = after(configuration, change)
        assert configuration["voters"], "a group never loses its last voter"
    else:
        raise AssertionError("the steps never end")
    names = [(m["broker_id"], m["incarnation"]) for m in configuration["voters"]]
    assert set(present.items()) <= set(names)
    if set(present) == wanted:
        assert set(names) == set(present.items())
    assert configuration["learners"] == []
