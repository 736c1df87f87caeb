"""What a broker keeps of the other brokers' data folders."""

from broker.peers.folder_starts import FolderStarts
from broker.peers.handshake import DataFolder


def test_every_start_counts_and_is_remembered_once() -> None:
    remembered: list[tuple[int, int, int]] = []
    starts = FolderStarts({(1, 0xA): 3}, lambda *start: remembered.append(start))
    for count, session in ((3, 30), (3, 30), (4, 40), (4, 40), (6, 60)):
        assert starts.check(1, DataFolder(0xA, count, session)) is None
    assert remembered == [(1, 0xA, 4), (1, 0xA, 6)]
    assert starts.check(1, DataFolder(0xA, 4, 40)) == 6
    assert starts.check(2, DataFolder(0xA, 1, 70)) is None, "of another broker"
    assert starts.check(1, DataFolder(0xB, 1, 80)) is None, "another incarnation"


def test_two_processes_cannot_have_made_the_same_start() -> None:
    starts = FolderStarts({(1, 0xA): 3})
    assert starts.check(1, DataFolder(0xA, 3, 30)) is None, "the session from before the restart is not known"
    assert starts.check(1, DataFolder(0xA, 3, 31)) == 3
    assert starts.check(1, DataFolder(0xA, 3, 30)) is None


def test_the_folders_of_one_broker_are_forgotten_before_they_are_many() -> None:
    starts = FolderStarts({(2, 0xA): 7})
    for incarnation in range(100):
        assert starts.check(1, DataFolder(incarnation, 2, 0)) is None
    assert starts.check(1, DataFolder(99, 1, 0)) == 2
    assert starts.check(1, DataFolder(0, 1, 0)) is None
    assert starts.check(2, DataFolder(0xA, 6, 0)) == 7, "those of another broker stay"
