"""Data folders of brokers at the write manager, over its restarts: the latest copy is taken, older ones are refuted."""

import pytest

from db import broker_registry
from db.broker_registry import FOLDERS_PER_BROKER, StoredFolder
from db.models import BrokerMetadata, TopicRow
from db.primary import Primary
from myqueue.protocol.errors import BrokerNotFound, StaleDataFolder
from myqueue.protocol.internal import BrokerRegistration
from tests.integration.test_reconciling import HEARTBEAT, Manager, registration

OWN = "a" * 16


def start(starts: int, session: str, sequence: int, incarnation: str = OWN) -> BrokerRegistration:
    return {**registration(1, incarnation), "starts": starts, "session": session, "sequence": sequence}


@pytest.fixture
def manager(primary: Primary) -> Manager:
    with primary.transaction() as transaction:
        transaction.session.query(TopicRow).delete()
        transaction.session.query(BrokerMetadata).delete()
    return Manager(primary, ttl_s=60.0)


def stored(manager: Manager) -> StoredFolder | None:
    manager.heartbeats.store()
    with manager.primary.reading() as session:
        return broker_registry.folder(session, OWN)


def test_an_older_copy_is_refuted_also_by_the_next_write_manager(manager: Manager) -> None:
    manager.heartbeats.register_broker(start(1, "s1", 0))
    manager.heartbeats.register_broker(start(2, "s2", 40))
    assert stored(manager) == StoredFolder(OWN, 1, 2, "s2", 40)
    for copy in (start(2, "s3", 40), start(1, "s3", 90), start(3, "s3", 39)):
        for taken_over in (manager, Manager(manager.primary, ttl_s=60.0)):
            with pytest.raises(StaleDataFolder, match="older copy"):
                taken_over.heartbeats.register_broker(copy)
    assert stored(manager) == StoredFolder(OWN, 1, 2, "s2", 40)
    successor = Manager(manager.primary, ttl_s=60.0)
    successor.heartbeats.register_broker(start(2, "s2", 40))  # the running process, at the new write manager
    successor.heartbeats.register_broker(start(3, "s4", 41))
    assert stored(successor) == StoredFolder(OWN, 1, 3, "s4", 41)


def test_heartbeats_say_how_far_a_folder_is(manager: Manager) -> None:
    manager.heartbeats.register_broker(start(1, "s1", 0))
    manager.brokers.heartbeat(1, {**HEARTBEAT, "session": "s1", "sequence": 500})
    with pytest.raises(StaleDataFolder):
        manager.heartbeats.register_broker(start(2, "s2", 499))
    manager.heartbeats.register_broker(start(2, "s2", 500))
    assert stored(manager) == StoredFolder(OWN, 1, 2, "s2", 500)


def test_of_two_processes_with_copies_of_a_folder_the_later_start_stays(manager: Manager) -> None:
    manager.heartbeats.register_broker(start(1, "s1", 10))
    manager.heartbeats.register_broker({**start(2, "s2", 10), "endpoint": "http://127.0.0.1:40009"})
    with pytest.raises(BrokerNotFound):
        manager.brokers.heartbeat(1, {**HEARTBEAT, "session": "s1", "sequence": 10})
    with pytest.raises(StaleDataFolder):
        manager.heartbeats.register_broker(start(1, "s1", 10))
    manager.brokers.heartbeat(1, {**HEARTBEAT, "session": "s2", "sequence": 11})
    assert manager.brokers.endpoint(1) == "http://127.0.0.1:40009"


def test_a_refuted_broker_comes_back_under_a_new_incarnation(manager: Manager) -> None:
    manager.heartbeats.register_broker(start(5, "s1", 100))
    with pytest.raises(StaleDataFolder):
        manager.heartbeats.register_broker(start(4, "s2", 80))
    assert manager.heartbeats.register_broker(start(1, "s2", 80, "b" * 16))["broker_id"] == 1
    manager.heartbeats.store()
    with pytest.raises(StaleDataFolder):  # the folder that was set aside stays known
        Manager(manager.primary, ttl_s=60.0).heartbeats.register_broker(start(5, "s3", 80))


def test_brokers_that_do_not_count_their_starts_are_taken(manager: Manager) -> None:
    manager.heartbeats.register_broker(registration(1))
    manager.brokers.heartbeat(1, HEARTBEAT)
    assert stored(manager) is None


def test_few_folders_of_a_broker_are_kept(manager: Manager) -> None:
    for number in range(FOLDERS_PER_BROKER + 4):
        manager.heartbeats.register_broker(start(1, "s", 0, f"{number:016x}"))
        manager.heartbeats.store()
    with manager.primary.reading() as session:
        kept = {folder.incarnation for folder in broker_registry.folders(session)}
    assert kept == {f"{number:016x}" for number in range(4, FOLDERS_PER_BROKER + 4)}
