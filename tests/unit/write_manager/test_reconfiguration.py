"""Members: every step is allowed, and the steps end where the catalog wants them."""

from hypothesis import given
from hypothesis import strategies as st

from myqueue.protocol.internal import Configuration, MemberChange, MemberName, PartitionReport
from write_manager.reconfiguration import ReportedReplica, new_initial_voters, next_change


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
    wanted: set[int], voters: set[int], reborn: set[int], away: set[int]
) -> None:
    configuration = group([member(b) for b in sorted(voters)])
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


def report(role: str, term: int = 0, end_offset: int = 0, size_bytes: int = 0) -> PartitionReport:
    return {
        "topic_id": "t",
        "partition_id": 0,
        "incarnation": "b",
        "role": role,  # type: ignore[typeddict-item]
        "term": term,
        "configuration": None,
        "beginning_offset": 0,
        "end_offset": end_offset,
        "size_bytes": size_bytes,
    }


def test_only_a_replica_that_nobody_has_taken_in_is_vacant() -> None:
    assert ReportedReplica.of(report("learner")).vacant
    for taken_in in (report("follower"), report("learner", 1), report("learner", 0, 1), report("learner", 0, 0, 1)):
        assert not ReportedReplica.of(taken_in).vacant


VOTERS = ((1, "a"), (2, "a"), (3, "a"))


def test_a_partition_begins_again_when_all_have_lost_it() -> None:
    reborn = {1: "b", 2: "b", 3: "b", 4: "x"}
    made_again = {2: ReportedReplica("c", vacant=True)}
    assert new_initial_voters([1, 2, 3], VOTERS, reborn, made_again) == ((1, "b"),)
    assert new_initial_voters([2, 1, 3], VOTERS, reborn, made_again) == ((2, "c"),)


def test_a_new_topic_whose_brokers_hold_nothing_yet_is_not_lost() -> None:
    assert new_initial_voters([1, 2, 3], VOTERS, {1: "a", 2: "a", 3: "a"}, {}) is None


incarnations = st.dictionaries(st.integers(1, 4), st.sampled_from("abc"))
replicas = st.dictionaries(st.integers(1, 4), st.builds(ReportedReplica, st.sampled_from("abc"), st.booleans()))


@given(incarnations, replicas)
def test_whoever_may_have_a_copy_is_waited_for(of_brokers: dict[int, str], held: dict[int, ReportedReplica]) -> None:
    held = {b: replica for b, replica in held.items() if b in of_brokers}
    found = new_initial_voters([1, 2, 3], VOTERS, of_brokers, held)
    away = not {1, 2, 3} <= of_brokers.keys()
    has_a_log = any(not replica.vacant for replica in held.values())
    names = {(b, held[b].incarnation if b in held else incarnation) for b, incarnation in of_brokers.items()}
    if away or has_a_log or names & set(VOTERS):
        assert found is None
    else:
        assert found is not None
        assert set(found) == {name for name in names if name[0] == 1}
        assert new_initial_voters([1, 2, 3], found, of_brokers, held) is None, "once is enough"
