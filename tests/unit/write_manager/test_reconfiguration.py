"""Members: every step is allowed, and the steps end where the catalog wants them."""

from dataclasses import dataclass, field
from itertools import product
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from myqueue.protocol.internal import Configuration, MemberChange, MemberName, PartitionReport
from write_manager.reconfiguration import ReportedReplica, is_rebuildable, new_initial_voters, next_change


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


def sound(*names: str) -> dict[int, ReportedReplica]:
    """Replicas on live brokers, as in sound("1a", "3b")."""
    return {int(name[0]): ReportedReplica(name[1:], vacant=False) for name in names}


def damaged(*names: str) -> dict[int, ReportedReplica]:
    return {int(name[0]): ReportedReplica(name[1:], vacant=False, damaged="a bad entry") for name in names}


def test_nothing_to_do() -> None:
    voters = [member(1), member(2), member(3)]
    assert next_change([1, 2, 3], group(voters), sound("1a", "2a", "3a")) is None


def test_a_broker_that_is_away_is_not_replaced() -> None:
    voters = [member(1), member(2), member(3)]
    assert next_change([1, 2, 3], group(voters), sound("1a", "2a")) is None


def test_lost_data_comes_back_as_a_learner_the_old_member_goes_and_the_learner_votes() -> None:
    configuration = group([member(1), member(2), member(3)])
    present = sound("1a", "2a", "3b")
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
    present = sound(*(f"{b}b" if b in reborn else f"{b}a" for b in wanted if b not in away))
    for _ in range(30):
        change = next_change(sorted(wanted), configuration, present)
        if change is None:
            break
        configuration = after(configuration, change)
        assert configuration["voters"], "a group never loses its last voter"
    else:
        raise AssertionError("the steps never end")
    names = [(m["broker_id"], m["incarnation"]) for m in configuration["voters"]]
    held = {(b, replica.incarnation) for b, replica in present.items()}
    assert held <= set(names)
    if set(present) == wanted:
        assert set(names) == held
    assert configuration["learners"] == []


Member = tuple[int, str]


@dataclass
class SimulatedGroup:
    """A group whose reconciler takes one step after the other, with leaders that are sound and alive."""

    wanted: list[int]
    configuration: Configuration
    present: dict[int, ReportedReplica]
    steps: list[str] = field(default_factory=list)

    @property
    def voters(self) -> set[Member]:
        return {(m["broker_id"], m["incarnation"]) for m in self.configuration["voters"]}

    @property
    def learners(self) -> set[Member]:
        return {(m["broker_id"], m["incarnation"]) for m in self.configuration["learners"]}

    def of(self, *, damaged: bool) -> set[Member]:
        return {(b, r.incarnation) for b, r in self.present.items() if (r.damaged is not None) == damaged}

    def step(self) -> bool:
        change = next_change(self.wanted, self.configuration, self.present)
        if change is not None:
            one = change["member"]
            self._check(change["step"], (one["broker_id"], one["incarnation"]))
            self.steps.append(f"{change['step']} {one['broker_id']}{one['incarnation']}")
            self.configuration = after(self.configuration, change)
            return True
        for broker_id, replica in self.present.items():
            if is_rebuildable(broker_id, replica, self.wanted, self.configuration):
                assert (broker_id, replica.incarnation) not in self.voters | self.learners
                self.steps.append(f"rebuild {broker_id}{replica.incarnation}")
                self.present[broker_id] = ReportedReplica(replica.incarnation + "+", vacant=True)
                return True
        return False

    def _check(self, step: str, one: Member) -> None:
        bad = self.of(damaged=True)
        assert one not in bad or step == "remove", "a damaged replica is neither added nor promoted"
        assert 2 * len(self.voters & bad) <= len(self.voters), "a damaged majority is left as it is"
        if step == "remove" and one in self.voters:
            remaining = self.voters - {one}
            assert remaining, "a group never loses its last voter"
            if one in bad:
                others = {b for b, _ in remaining}
                assert not self.learners, "one after the other"
                assert set(self.wanted) - {one[0]} <= others, "none is being rebuilt"
                assert 2 * len(remaining & self.of(damaged=False)) > len(remaining), "the sound ones are a majority"
            if one not in bad and self.present.get(one[0], one) == ReportedReplica(one[1], vacant=False):
                assert not self.voters & bad, "a sound voter stays while another one is to be rebuilt"

    def run(self) -> None:
        for _ in range(60):
            if not self.step():
                return
        raise AssertionError(f"the steps never end: {self.steps}")


def test_with_two_replicas_the_damaged_one_is_removed_rebuilt_and_taken_in_again() -> None:
    two = SimulatedGroup([1, 2], group([member(1), member(2)]), sound("1a") | damaged("2a"))
    two.run()
    assert two.steps == ["remove 2a", "rebuild 2a", "add_learner 2a+", "promote 2a+"]
    assert two.voters == {(1, "a"), (2, "a+")}


def test_a_second_damaged_replica_waits_until_the_first_one_votes_again() -> None:
    three = SimulatedGroup([1, 2, 3], group([member(1), member(2), member(3)]), sound("1a", "3a") | damaged("2a"))
    assert three.step()
    assert three.steps == ["remove 2a"]
    three.present |= damaged("3a")
    three.run()
    assert three.steps == [
        *["remove 2a", "rebuild 2a", "add_learner 2a+", "promote 2a+"],
        *["remove 3a", "rebuild 3a", "add_learner 3a+", "promote 3a+"],
    ]


def test_another_replica_that_the_catalog_wants_is_added_first() -> None:
    three = SimulatedGroup([1, 2, 3], group([member(1), member(2)]), sound("1a", "3a") | damaged("2a"))
    three.run()
    assert three.steps[:3] == ["add_learner 3a", "promote 3a", "remove 2a"]
    assert three.voters == {(1, "a"), (2, "a+"), (3, "a")}


def test_a_damaged_learner_is_removed_and_rebuilt() -> None:
    one = SimulatedGroup([1, 2], group([member(1)], [member(2)]), sound("1a") | damaged("2a"))
    one.run()
    assert one.steps == ["remove 2a", "rebuild 2a", "add_learner 2a+", "promote 2a+"]


@pytest.mark.parametrize(
    ("voters", "present"),
    [
        ([member(1)], damaged("1a")),
        ([member(1), member(2)], damaged("1a", "2a")),
        ([member(1), member(2), member(3)], sound("1a") | damaged("2a", "3a")),
        ([member(1), member(2), member(3)], sound("1a") | damaged("2a")),  # broker 3 is away
        ([member(1), member(2)], damaged("2a")),  # broker 1 is away
    ],
)
def test_what_a_group_may_need_stays(voters: list[MemberName], present: dict[int, ReportedReplica]) -> None:
    wanted = [m["broker_id"] for m in voters]
    waiting = SimulatedGroup(wanted, group(voters), present)
    waiting.run()
    assert waiting.steps == []


CONDITIONS = ("sound", "damaged", "away", "lost")


def reported(conditions: dict[int, str]) -> dict[int, ReportedReplica]:
    found: dict[int, ReportedReplica] = {}
    for broker_id, condition in conditions.items():
        if condition == "damaged":
            found |= damaged(f"{broker_id}a")
        elif condition != "away":
            found |= sound(f"{broker_id}{'a' if condition == 'sound' else 'b'}")
    return found


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_all_small_groups_keep_their_rules_and_heal_when_they_can(size: int) -> None:
    """Every voter of every group sound, damaged, on a broker that is away, or with its data lost."""
    ids = list(range(1, size + 1))
    for conditions in product(CONDITIONS, repeat=size):
        present = reported(dict(zip(ids, conditions, strict=True)))
        simulated = SimulatedGroup(ids, group([member(b) for b in ids]), present)
        simulated.run()
        few = 2 * conditions.count("damaged") < size
        if "away" not in conditions and ((few and "sound" in conditions) or "damaged" not in conditions):
            assert simulated.voters == simulated.of(damaged=False), conditions
            assert not simulated.of(damaged=True), conditions
        if 2 * conditions.count("damaged") > size:
            assert simulated.steps == [], conditions


@given(
    st.lists(st.integers(1, 5), min_size=1, unique=True),
    st.sets(st.integers(1, 5), min_size=1),
    st.sets(st.integers(1, 5)),
    st.dictionaries(st.integers(1, 5), st.sampled_from(CONDITIONS)),
)
def test_any_group_keeps_the_rules(
    wanted: list[int], voters: set[int], learners: set[int], conditions: dict[int, str]
) -> None:
    present = reported(conditions)
    configuration = group([member(b) for b in sorted(voters)], [member(b) for b in sorted(learners - voters)])
    SimulatedGroup(wanted, configuration, present).run()


def test_only_a_damaged_replica_outside_its_group_is_rebuilt() -> None:
    [bad], [good] = damaged("2a").values(), sound("2a").values()
    without = group([member(1)])
    assert is_rebuildable(2, bad, [1, 2], without)
    assert not is_rebuildable(2, bad, [1, 2], None), "no leader has reported"
    assert not is_rebuildable(2, bad, [1], without), "the catalog does not want it"
    assert not is_rebuildable(2, good, [1, 2], without)
    assert not is_rebuildable(2, bad, [1, 2], group([member(1), member(2)]))
    assert not is_rebuildable(2, bad, [1, 2], group([member(1)], [member(2)]))


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
    assert not ReportedReplica.of({**report("learner"), "damaged": "restored from a backup"}).vacant


VOTERS = ((1, "a"), (2, "a"), (3, "a"))


def test_a_partition_begins_again_when_all_have_lost_it() -> None:
    reborn = {1: "b", 2: "b", 3: "b", 4: "x"}
    made_again = {2: ReportedReplica("c", vacant=True)}
    assert new_initial_voters([1, 2, 3], VOTERS, reborn, made_again) == ((1, "b"),)
    assert new_initial_voters([2, 1, 3], VOTERS, reborn, made_again) == ((2, "c"),)


def test_a_damaged_replica_has_not_lost_its_data() -> None:
    reborn = {1: "b", 2: "b", 3: "b"}
    suspect = ReportedReplica.of({**report("learner"), "damaged": "restored from a backup"})
    assert new_initial_voters([1, 2, 3], VOTERS, reborn, {}) is not None
    assert new_initial_voters([1, 2, 3], VOTERS, reborn, {3: suspect}) is None


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


def reported_with(**settings: int | None) -> ReportedReplica:
    report = {
        "topic_id": "t",
        "partition_id": 0,
        "incarnation": "a",
        "role": "follower",
        "term": 1,
        "configuration": None,
        "beginning_offset": 0,
        "end_offset": 0,
        "size_bytes": 0,
        **settings,
    }
    return ReportedReplica.of(cast(PartitionReport, report))


def test_a_replica_with_another_retention_is_updated() -> None:
    assert reported_with(retention_ms=1000, retention_bytes=None).has_other_retention((None, None))
    assert reported_with(retention_ms=None, retention_bytes=None).has_other_retention((None, 5))
    assert not reported_with(retention_ms=1000, retention_bytes=5).has_other_retention((1000, 5))


def test_a_broker_that_does_not_report_its_retention_is_left_alone() -> None:
    """It would be sent the same command for ever."""
    assert not reported_with().has_other_retention((1000, None))
