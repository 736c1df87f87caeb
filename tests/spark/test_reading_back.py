"""What is published is there when it is read back at once, whatever happens to the brokers."""

import pytest

from tests.cluster import Cluster
from tests.spark.reading_back import read_back

WITHIN_S = 50.0
LEAST_ROUNDS, LEAST_KILLS = 10, 3


@pytest.mark.slow
@pytest.mark.timeout(300)  # the first test waits for the stack
def test_every_micro_batch_is_read_back_while_brokers_are_killed(stack: Cluster) -> None:
    result = read_back(
        stack, seed=18, rounds=1000, within_s=WITHIN_S, least_rounds=LEAST_ROUNDS, least_kills=LEAST_KILLS
    )
    stack.heal()
    assert result.problems == [], str(result)
    assert result.kills >= LEAST_KILLS, str(result)
    assert result.rounds >= LEAST_ROUNDS, str(result)
