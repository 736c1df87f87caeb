"""Entries whose batches were left on disk: the core counts them, and has the driver load what it sends."""

from broker.raft.entry import Kind, LogEntry
from broker.raft.log import RaftLog


def log_of(*bodies: bytes | None) -> RaftLog:
    log = RaftLog(1, 0, 0)
    for index, body in enumerate(bodies, 1):
        log.append(LogEntry(index, 1, Kind.MESSAGES, index - 1, 0, 1, None, (), body))
    return log


def test_what_is_sent_ends_before_an_entry_without_its_batch() -> None:
    log = log_of(b"a", b"b", None, b"d")
    taken = log.slice(1, 1 << 20)
    assert taken is not None
    assert [entry.index for entry in taken] == [1, 2]
    assert log.slice(3, 1 << 20) is None
    again = log.slice(4, 1 << 20)
    assert again is not None
    assert [entry.index for entry in again] == [4]


def test_entries_of_other_kinds_are_whole_without_a_body() -> None:
    log = RaftLog(1, 0, 0)
    log.append(LogEntry(1, 1, Kind.NOOP, 0, 0))
    assert log.slice(1, 1) == [LogEntry(1, 1, Kind.NOOP, 0, 0)]
