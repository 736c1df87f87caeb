"""A replica as found on disk, for the Raft core to start from."""

from broker.raft.configuration import GroupConfiguration, MemberId
from broker.raft.snapshot import Anchor, Snapshot, Stored
from broker.storage import groups
from broker.storage.database import Database
from broker.storage.groups import Corrupted
from broker.storage.log import Log
from broker.storage.records import BadRecord, spoken

CHECKED_ENTRIES = 1000
CHECKED_BYTES = 16 << 20


def snapshot_of(database: Database, log: Log) -> Snapshot:
    with database.reading() as connection:
        return groups.load_snapshot(connection, log.group)


def last_known_voters(database: Database, log: Log) -> tuple[MemberId, ...]:
    """As far as a damaged log still says; nobody when it does not."""
    try:
        last = log.last_configuration()
        if last is not None and isinstance(body := spoken(last).body, GroupConfiguration):
            return body.voters
        return snapshot_of(database, log).configuration.voters
    except (Corrupted, BadRecord):
        return ()


def load(database: Database, log: Log) -> Stored:
    """Raises Corrupted when what is there cannot be what was written."""
    snapshot = snapshot_of(database, log)
    log.load(CHECKED_ENTRIES, CHECKED_BYTES)
    log.snapshot_index = snapshot.index
    commit = log.group.hard.commit
    anchor = max(snapshot.start_index - 1, min(snapshot.index, log.tail.next_index - 1))
    end = log.tail_at(anchor)
    try:
        entries = tuple(spoken(entry) for entry in log.stream(anchor + 1, bodies_from=commit + 1))
    except BadRecord as error:
        raise Corrupted(str(error)) from error
    return Stored(
        hard=log.group.hard,
        snapshot=snapshot,
        terms=log.terms(anchor),
        anchor=Anchor(anchor, end.end_offset, end.append_time),
        entries=entries,
    )
