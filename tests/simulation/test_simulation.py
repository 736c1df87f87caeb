"""The simulator finds nothing in the core, everything in a broken one, and the same thing twice."""

import time

import pytest

from tests.simulation.bugs import BUGS
from tests.simulation.run import run

STEPS = 10_000
SEEDS_PER_BUG = 200
FRESH_SECONDS = 60
FIRST_FRESH_SEED = 1_000


def test_a_seed_replays_bit_for_bit() -> None:
    assert run(11, STEPS) == run(11, STEPS)
    assert run(11, STEPS).trace_hash != run(12, STEPS).trace_hash


@pytest.mark.parametrize("seed", range(1, 25))
def test_no_violation(seed: int) -> None:
    assert run(seed, STEPS).violations == ()


@pytest.mark.parametrize("bug", sorted(BUGS))
def test_a_planted_bug_is_found(bug: str) -> None:
    assert any(run(seed, STEPS, bug).violations for seed in range(1, SEEDS_PER_BUG + 1))


@pytest.mark.slow
def test_a_minute_of_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    """As many as fit; `make soak` goes on for longer."""
    seed, until = FIRST_FRESH_SEED, time.monotonic() + FRESH_SECONDS
    while time.monotonic() < until:
        assert run(seed, STEPS).violations == (), f"seed {seed}"
        seed += 1
    with capsys.disabled():
        print(f" [{seed - FIRST_FRESH_SEED} seeds in {FRESH_SECONDS} s] ", end="")
