"""`myqueue doctor` and `cluster status` while a tier is away: they say which, and what to do."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from myqueue.cli.app import app
from tests.calls import Calls
from tests.cluster import Cluster
from tests.waiting import until

# What is stopped, the tier that is to be found, how bad it is, and what is said.
BROKEN = [
    (["nginx"], "address", "failure", "nothing listens"),
    (["write-manager-1", "write-manager-2"], "write manager", "failure", "does not answer"),
    (["read-manager-1"], "read managers", "warning", "read-manager-1"),
    (["read-manager-1", "read-manager-2"], "read managers", "failure", "none answers"),
    (["broker-3"], "brokers", "warning", "away: 3"),
    (["broker-2", "broker-3"], "partitions", "failure", "without leader"),
    (["postgres-3"], "PostgreSQL", "warning", "1 standby away"),
    (["postgres-1"], "PostgreSQL", "failure", "the primary does not answer"),
    (["postgres-1", "postgres-2", "postgres-3"], "PostgreSQL", "failure", "cannot ask any server"),
]
# A warning and a failure that are found and healed within seconds.
QUICK = (["broker-3"], ["write-manager-1", "write-manager-2"])


def examined(url: str) -> tuple[int, dict[str, Any]]:
    """The exit code, and the findings by tier."""
    done = CliRunner().invoke(app, ["doctor", "-o", "json", "--url", url])
    return done.exit_code, {finding["tier"]: finding for finding in json.loads(done.stdout)["findings"]}


def status_agrees(url: str, *, ready: bool) -> bool:
    status = CliRunner().invoke(app, ["cluster", "status", "--url", url])
    code, words = (0, "ready") if ready else (3, "not ready")
    return status.exit_code == code and status.stdout.startswith(f"{url}: {words}")


@pytest.mark.parametrize(
    ("stopped", "tier", "state", "said"),
    [pytest.param(*each, id="+".join(each[0]), marks=() if each[0] in QUICK else pytest.mark.slow) for each in BROKEN],
)
def test_what_is_away_is_found(
    cluster: Cluster, calls: Calls, topic_name: str, stopped: list[str], tier: str, state: str, said: str
) -> None:
    # The test before may have stopped the write manager, and brokers register with the new one one by one.
    until(lambda: calls.create_topic(topic_name, partitions=2).status_code == 201, within_s=30, what="a topic is made")
    for name in stopped:
        cluster.stop(name)

    def found() -> tuple[int, dict[str, Any]] | None:
        code, findings = examined(cluster.url)
        return (code, findings) if findings[tier]["state"] == state else None

    code, findings = until(found, within_s=30, what=f"doctor finds that {stopped} is away")
    assert said in findings[tier]["what"]
    assert findings[tier]["advice"]
    assert code == (1 if state == "failure" else 0)
    if state == "warning":
        assert findings["round trip"]["state"] == "ok"
    if stopped in QUICK:
        # Read managers notice some seconds later than doctor, which asks the write manager itself.
        until(lambda: status_agrees(cluster.url, ready=state != "failure"), within_s=30, what="cluster status agrees")


@pytest.mark.slow
def test_a_broker_that_hangs_is_found_and_waited_for_no_longer_than_needed(cluster: Cluster) -> None:
    cluster.pause("broker-2")
    _, findings = examined(cluster.url)
    assert "away: 2" in findings["brokers"]["what"]

    def is_only_a_warning() -> bool:
        """Not at once: the partitions that it led need a new leader first."""
        code, findings = examined(cluster.url)
        return code == 0 and "away: 2" in findings["brokers"]["what"]

    until(is_only_a_warning, within_s=30, what="the others lead its partitions, and a message goes round")
