"""A store against a model: everything that changes it, in any order, and every way in which a process ends."""

import random
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from broker.storage.disk import DiskError, NoSpace
from tests.fault_disk import Fault, FaultDisk, PowerLoss
from tests.unit.storage.store_run import StoreRun
from tests.unit.storage.store_script import KINDS, Op, submit, write_round

# Shrinking a run of a store takes minutes; the seed and the steps are printed as they are.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
NUMBERS = st.integers(0, 9)
OPS = st.builds(Op, st.sampled_from(("append", "append", *KINDS)), st.integers(0, 3), NUMBERS, NUMBERS)
ROUNDS = st.lists(OPS, min_size=1, max_size=4)
SEEDS = st.integers(0, 1 << 16)
CALLS = st.integers(1, 25)


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.run = StoreRun(FaultDisk(), segment_bytes=16 << 10, file_bytes=700, max_segment_entries=15)

    @property
    def disk(self) -> FaultDisk:
        return self.run.disk

    @rule(rounds=st.lists(ROUNDS, min_size=1, max_size=3))
    def write(self, rounds: list[list[Op]]) -> None:
        for ops in rounds:
            write_round(self.run, ops)

    @rule()
    def upkeep(self) -> None:
        self.run.upkeep_once()

    @rule(ops=ROUNDS)
    def write_and_keep_up(self, ops: list[Op]) -> None:
        self.write_then_upkeep(ops)

    def write_then_upkeep(self, ops: list[Op]) -> None:
        write_round(self.run, ops)
        self.run.upkeep_once()
        self.run.write()

    @rule(ops=ROUNDS)
    def keep_up_while_a_round_waits(self, ops: list[Op]) -> None:
        for op in ops:
            submit(self.run, op)
        self.run.upkeep_once()
        self.run.write()

    @rule(number=SEEDS, max_bytes=st.sampled_from([1, 400, 1 << 20]), with_sync=st.booleans())
    def flush_one(self, number: int, max_bytes: int, with_sync: bool) -> None:
        logs = list(self.run.store.logs.values())
        if logs:
            log = logs[number % len(logs)]
            log.flush(max_bytes)
            if with_sync:
                log.sync()

    @rule(max_bytes=st.sampled_from([100, 5000]))
    def fill_free_segments_with_zeros(self, max_bytes: int) -> None:
        self.run.store.journal.prefill(max_bytes)

    @rule()
    def settle(self) -> None:
        self.run.settle()

    @rule()
    def check(self) -> None:
        self.run.check()

    @rule()
    def kill(self) -> None:
        self.run.disk.after_kill()
        self.run.restart()

    @rule(seed=SEEDS)
    def lose_power(self, seed: int) -> None:
        self.run.disk = self.run.disk.after_any_power_loss(random.Random(seed))
        self.run.restart()

    @rule(ops=ROUNDS, calls=CALLS, seed=SEEDS, is_kill=st.booleans())
    def end_in_the_middle(self, ops: list[Op], calls: int, seed: int, is_kill: bool) -> None:
        self.lost_during(lambda: self.write_then_upkeep(ops), calls)
        if is_kill:
            self.kill()
        else:
            self.lose_power(seed)

    @rule(ops=ROUNDS, calls=st.lists(CALLS, min_size=2, max_size=4), seed=SEEDS, is_kill=st.booleans())
    def end_during_starts(self, ops: list[Op], calls: list[int], seed: int, is_kill: bool) -> None:
        self.lost_during(lambda: self.write_then_upkeep(ops), calls[0])
        chance = random.Random(seed)
        for number in calls[1:]:
            if is_kill:
                self.disk.after_kill()
            else:
                self.run.disk = self.disk.after_any_power_loss(chance)
            self.lost_during(self.run.open, number)
        self.lose_power(seed)

    def lost_during(self, act: Callable[[], None], calls: int) -> None:
        self.disk.faults = {self.disk.calls + calls: Fault.POWER_LOSS}
        with suppress(PowerLoss):
            act()
        self.disk.faults.clear()

    @rule(ops=ROUNDS, calls=CALLS, length=st.integers(1, 6))
    def fill_the_disk(self, ops: list[Op], calls: int, length: int) -> None:
        first = self.disk.calls + calls
        self.disk.faults = dict.fromkeys(range(first, first + length), Fault.NO_SPACE)
        try:
            self.write_then_upkeep(ops)
        except DiskError:  # it showed in a sync
            self.kill()
        self.disk.faults.clear()

    @rule(ops=ROUNDS, calls=CALLS, seed=SEEDS, forgets=st.booleans())
    def fail_a_call(self, ops: list[Op], calls: int, seed: int, forgets: bool) -> None:
        self.disk.faults = {self.disk.calls + calls: Fault.ERROR}
        try:
            self.write_then_upkeep(ops)
        except DiskError:  # the process ends
            if forgets:
                self.disk.after_cache_loss()
            if seed % 2:
                self.kill()
            else:
                self.lose_power(seed)
        self.disk.faults.clear()

    @rule(calls=CALLS)
    def fill_the_disk_during_a_start(self, calls: int) -> None:
        self.disk.faults = {self.disk.calls + calls: Fault.NO_SPACE}
        with suppress(NoSpace, DiskError):
            self.run.open()
        self.disk.faults.clear()
        self.run.restart()

    def teardown(self) -> None:
        self.disk.faults.clear()
        self.run.disk.after_kill()
        self.run.restart()


class LongStoreMachine(StoreMachine):
    """The same, many times."""


def runs(examples: int) -> settings:
    return settings(
        max_examples=examples, stateful_step_count=25, deadline=None, report_multiple_bugs=False, phases=PHASES
    )


StoreMachine.TestCase.settings = runs(30)
LongStoreMachine.TestCase.settings = runs(3000)
test_the_store_is_a_model = StoreMachine.TestCase
test_the_store_is_a_model_in_many_runs = pytest.mark.exhaustive(pytest.mark.timeout(1800)(LongStoreMachine.TestCase))
