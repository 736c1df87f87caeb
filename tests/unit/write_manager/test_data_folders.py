"""Which registrations the catalog's knowledge of a data folder refutes, and what of it is stored when."""

import pytest

from db.broker_registry import StoredFolder
from myqueue.protocol.errors import StaleDataFolder
from myqueue.protocol.internal import BrokerRegistration
from write_manager.data_folders import SEQUENCE_INTERVAL_S, DataFolders, check_folder, folder_of

KNOWN = StoredFolder("a" * 16, 1, starts=5, session="e", sequence=100)


def folder(starts: int, session: str, sequence: int) -> StoredFolder:
    return StoredFolder("a" * 16, 1, starts, session, sequence)


@pytest.mark.parametrize(
    "again",
    [
        folder(6, "f", 100),  # the next start
        folder(9, "f", 250),  # starts that did not reach the write manager
        folder(5, "e", 90),  # the same process, with what it found at its start
        None,  # a broker that does not count its starts
    ],
)
def test_the_latest_copy_is_taken(again: StoredFolder | None) -> None:
    check_folder(again, KNOWN)
    check_folder(again, None)


@pytest.mark.parametrize(
    "copy",
    [
        folder(5, "f", 100),  # restored from just before the last start
        folder(3, "f", 80),
        folder(6, "f", 99),  # restored from after the last start
        folder(4, "f", 999),
    ],
)
def test_an_older_copy_is_refuted(copy: StoredFolder) -> None:
    with pytest.raises(StaleDataFolder) as failure:
        check_folder(copy, KNOWN)
    assert failure.value.details == {"starts": 5, "sequence": 100}
    check_folder(copy, None)


def loaded() -> DataFolders:
    folders = DataFolders()
    folders.load([KNOWN], now_s=1000.0)
    return folders


def test_heartbeats_raise_what_the_next_start_must_have() -> None:
    folders = loaded()
    folders.advanced(KNOWN.incarnation, 300)
    folders.advanced(KNOWN.incarnation, 200)  # late
    folders.advanced(KNOWN.incarnation, None)
    folders.advanced("b" * 16, 7)
    with pytest.raises(StaleDataFolder):
        folders.check(folder(6, "f", 299))
    folders.check(folder(6, "f", 300))


def test_a_copy_that_starts_beside_the_original_takes_its_place() -> None:
    folders = loaded()
    assert folders.is_registered(KNOWN.incarnation, "e")
    folders.check(folder(6, "f", 100))
    folders.registered(folder(6, "f", 100))
    assert not folders.is_registered(KNOWN.incarnation, "e")
    with pytest.raises(StaleDataFolder):
        folders.check(KNOWN)


def test_starts_are_stored_at_once_and_sequences_now_and_then() -> None:
    folders = loaded()
    assert folders.take_changes(2000.0) == []
    folders.registered(folder(6, "f", 100))
    [stored] = folders.take_changes(2000.0)
    assert (stored.starts, stored.session) == (6, "f")
    folders.put_back([stored])
    assert folders.take_changes(2000.5) == [stored]
    folders.advanced(KNOWN.incarnation, 400)
    assert folders.take_changes(2001.0) == []
    [later] = folders.take_changes(2001.0 + SEQUENCE_INTERVAL_S)
    assert later.sequence == 400


def test_a_restart_does_not_lower_the_sequence() -> None:
    folders = loaded()
    folders.advanced(KNOWN.incarnation, 400)
    folders.registered(folder(5, "e", 100))  # the same process, after a restart of the write manager
    with pytest.raises(StaleDataFolder):
        folders.check(folder(6, "f", 399))


def test_a_registration_without_these_fields_has_no_folder() -> None:
    request: BrokerRegistration = {
        "broker_id": 1,
        "endpoint": "",
        "raft_address": "",
        "hostname": "",
        "incarnation": "a" * 16,
        "clock_ms": 0,
        "partitions": [],
    }
    assert folder_of(request, 1) is None
    assert folder_of({**request, "starts": 5, "session": "e", "sequence": 100}, 1) == KNOWN
