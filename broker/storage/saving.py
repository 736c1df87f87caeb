"""What a round of the Raft core wants on disk: truncation, snapshot record, entries, term and vote."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from broker.raft.effects import Persist
from broker.storage import groups
from broker.storage.log import Log, tail_at
from broker.storage.records import stored
from broker.storage.writer import Round

_STALE_ENTRIES = 256
_STALE_BYTES = 8 << 20


class Owed(NamedTuple):
    log: Log
    persist: Persist


class Save:
    """Never refused, so that votes work on a full disk; what may not fit is refused before it gets here."""

    uses_reserve = True
    lasting = True

    def __init__(self, owed: Sequence[Owed]) -> None:
        self._owed = owed
        self.size_bytes = sum(entry.size for _, persist in owed for entry in persist.entries)

    def apply(self, round_: Round) -> None:
        for log, persist in self._owed:
            _apply(round_, log, persist)


def _apply(round_: Round, log: Log, persist: Persist) -> None:
    before = round_.group_of(log)
    if persist.truncate_from is not None:
        _truncate(round_, log, persist.truncate_from)
    if persist.snapshot is not None:
        _set_start(round_, log, persist)
    for entry in persist.entries:
        kept = stored(entry)
        round_.append(log, kept)
        log.unsaved_bytes += kept.size_bytes
    group = round_.group_of(log)
    hard, old = persist.hard, group.hard
    # The commit index alone is stored now and then: it only says how far a restart may go without asking.
    stale = hard.commit - old.commit >= _STALE_ENTRIES or log.unsaved_bytes >= _STALE_BYTES
    if group is not before or stale or (hard.term, hard.vote) != (old.term, old.vote):
        group = replace(group, hard=hard)
        groups.update(round_.connection, group)
        round_.set_group(log, group)
        log.unsaved_bytes = 0


def _truncate(round_: Round, log: Log, index: int) -> None:
    round_.flush()
    group = round_.group_of(log)
    if index == 0:
        group = groups.insert_again(round_.connection, group)
        round_.set_group(log, group)
        round_.set_tail(log, group.start)
        return
    round_.connection.execute("DELETE FROM entry WHERE group_id = ? AND entry_index >= ?", (group.group_id, index))
    round_.set_tail(log, tail_at(round_.connection, group, index - 1))


def _set_start(round_: Round, log: Log, persist: Persist) -> None:
    snapshot = persist.snapshot
    assert snapshot is not None
    group = round_.group_of(log)
    if snapshot.start_index != group.first_index:
        round_.flush()
        if persist.truncate_from == 0:  # the record of another replica: this log starts anew behind it
            group = replace(group, first_index=snapshot.start_index, start_offset=snapshot.start_offset)
            round_.set_tail(log, group.start)
        else:
            last_gone = tail_at(round_.connection, group, snapshot.start_index - 1)
            group = replace(
                group,
                first_index=snapshot.start_index,
                start_offset=snapshot.start_offset,
                start_bytes=last_gone.end_bytes,
                start_crc=last_gone.crc,
            )
        round_.set_group(log, group)
    groups.store_snapshot(round_.connection, group.group_id, snapshot)
    log.snapshot_index = snapshot.index
