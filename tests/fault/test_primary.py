"""The PostgreSQL primary killed, paused and erased under load: nothing acknowledged is lost, and clients only wait."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import Cluster, running_cluster
from tests.fault.fault_rounds import strike_primary, survive, timeline

pytestmark = pytest.mark.timeout(300)

LONGEST_OUTAGE_S = {"kill": 15.0, "pause": 25.0, "erase": 30.0}  # a third of it on an idle machine


def assert_survived(cluster: Cluster, path: Path, fault: str) -> None:
    outcome = survive(cluster, path, fault, strike_primary(fault))
    assert max(outcome.outages_s.values()) <= LONGEST_OUTAGE_S[fault]


def test_primary_killed_under_load(cluster: Cluster, tmp_path: Path) -> None:
    before = cluster.local.primary, timeline(cluster)
    assert_survived(cluster, tmp_path / "history.jsonl", "kill")
    assert (cluster.local.primary, timeline(cluster)) == before, "restarted, not replaced"


@pytest.fixture(scope="module")
def supervised(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Its runner kills servers that hang, as it does by default."""
    with running_cluster(tmp_path_factory.mktemp("supervised"), database_hang_s=None) as cluster:
        yield cluster


@pytest.mark.slow
def test_primary_paused_under_load(supervised: Cluster, tmp_path: Path) -> None:
    before = supervised.local.primary, timeline(supervised)
    assert_survived(supervised, tmp_path / "history.jsonl", "pause")
    assert (supervised.local.primary, timeline(supervised)) == before, "killed and restarted, not replaced"


@pytest.mark.slow
def test_primary_erased_under_load(supervised: Cluster, tmp_path: Path) -> None:
    """A standby is promoted; on its timeline a write manager becomes active anew, with all that was acknowledged."""
    old, before = supervised.local.primary, timeline(supervised)
    assert_survived(supervised, tmp_path / "history.jsonl", "erase")
    assert (supervised.local.primary != old, timeline(supervised)) == (True, before + 1)
