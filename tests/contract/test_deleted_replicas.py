"""A delete goes by what the write manager has seen of a replica, whatever the replica is stored on."""

import pytest

from broker.command_fence import KnownReplica
from broker.raft.configuration import ConfigurationChange, MemberId, Step
from broker.raft.events import Reconfigure
from broker.replica import Replica
from broker.storage.store import COMMAND_EPOCH
from broker.storage.writer import Change
from myqueue.protocol.errors import PartitionNotFound, RegistrationConflict
from tests.broker_store import NOW_MS, TOPIC_ID, Store, append, read_all


def reported(store: Store) -> KnownReplica:
    """As the write manager knows it after a heartbeat."""
    (report,) = store.partitions.reports()
    return KnownReplica(int(report["incarnation"], 16), report["configuration_index"])


def add_learner(store: Store, replica: Replica) -> None:
    change = ConfigurationChange(Step.ADD_LEARNER, MemberId(2, 2))
    requests = replica.leader_requests
    expected = reported(store).configuration_index
    store.driver.run(requests.request(lambda number: Reconfigure(number, change, expected, NOW_MS)))


def test_a_replica_is_deleted_as_it_was_reported(store: Store) -> None:
    append(store.replica(), [b"a"])
    store.partitions.drop(TOPIC_ID, 0, reported(store))
    with pytest.raises(PartitionNotFound):
        store.partitions.get(TOPIC_ID, 0)


def test_a_replica_whose_group_has_changed_since_is_kept(store: Store) -> None:
    replica = store.replica()
    append(replica, [b"a"])
    before = reported(store)
    add_learner(store, replica)
    for _ in range(2):
        with pytest.raises(RegistrationConflict, match="newer than"):
            store.partitions.drop(TOPIC_ID, 0, before)
        append(store.replica(), [b"b"])  # it still leads its group
        store.reload()
    assert read_all(store.replica()) == [b"a", b"b", b"b"]
    store.partitions.drop(TOPIC_ID, 0, reported(store))
    assert store.partitions.all() == []


def test_a_replica_that_was_made_again_is_kept(store: Store) -> None:
    append(store.replica(), [b"a"])
    before = reported(store)
    store.partitions.drop(TOPIC_ID, 0, before)
    store.replica()
    with pytest.raises(RegistrationConflict, match="another member"):
        store.partitions.drop(TOPIC_ID, 0, before)
    store.partitions.drop(TOPIC_ID, 0, reported(store))


def test_a_suspect_replica_is_deleted_by_its_incarnation(store: Store) -> None:
    """It takes no part in its group, so it has no configuration to compare."""
    append(store.replica(), [b"a"])
    before = reported(store)
    store.partitions.refute("an older copy")
    with pytest.raises(RegistrationConflict, match="another member"):
        store.partitions.drop(TOPIC_ID, 0, KnownReplica(before.incarnation ^ 1, before.configuration_index))
    store.partitions.drop(TOPIC_ID, 0, before)


def test_the_epoch_of_commands_outlives_a_restart(store: Store) -> None:
    assert store.store.command_epoch == 0
    change = Change(lambda round_: store.store.set_value(round_, COMMAND_EPOCH, "7"), uses_reserve=True)
    store.writer.submit(change).result(20)
    for _ in range(3):
        store.reload()
        assert store.store.command_epoch == 7
