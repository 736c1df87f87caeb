"""The active write manager killed, paused and stopped under load: the other one takes over, and clients only wait."""

from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.fault.fault_rounds import kill_both, pause_briefly, strike_write_manager, survive

pytestmark = pytest.mark.timeout(240)

LONGEST_OUTAGE_S = {"kill": 10.0, "pause": 15.0, "term": 5.0}  # half of it on an idle machine


@pytest.mark.parametrize(
    "fault", ["kill", pytest.param("pause", marks=pytest.mark.slow), pytest.param("term", marks=pytest.mark.slow)]
)
def test_takeover_under_load(cluster: Cluster, tmp_path: Path, fault: str) -> None:
    outcome = survive(cluster, tmp_path / "history.jsonl", fault, strike_write_manager(fault))
    assert outcome.outages_s["produce"] <= LONGEST_OUTAGE_S[fault]


@pytest.mark.slow
@pytest.mark.parametrize("paused_s", [1.6, 2.9, 3.2, 3.6, 4.5])
def test_a_pause_as_long_as_a_takeover(cluster: Cluster, tmp_path: Path, paused_s: float) -> None:
    outcome = survive(cluster, tmp_path / "history.jsonl", "pause", pause_briefly(paused_s))
    assert outcome.outages_s["produce"] <= LONGEST_OUTAGE_S["pause"]


@pytest.mark.slow
def test_both_killed(cluster: Cluster, tmp_path: Path) -> None:
    survive(cluster, tmp_path / "history.jsonl", "kill", kill_both)
