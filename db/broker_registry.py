"""Brokers and read managers as stored: identity, addresses and status. Liveness is decided in memory."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import delete, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from db.models import BrokerMetadata, DataFolderRow, ManagerMetadata

FOLDERS_PER_BROKER = 16


@dataclass(frozen=True, slots=True)
class StoredBroker:
    broker_id: int
    endpoint: str
    raft_address: str
    data_address: str
    hostname: str
    incarnation: str
    status: str


@dataclass(frozen=True, slots=True)
class StoredFolder:
    """What is known of the data folder of this incarnation."""

    incarnation: str
    broker_id: int
    starts: int
    session: str
    sequence: int


def brokers(session: Session) -> list[StoredBroker]:
    rows = session.scalars(select(BrokerMetadata).order_by(BrokerMetadata.broker_id))
    return [
        StoredBroker(
            row.broker_id,
            row.endpoint,
            row.raft_address,
            row.data_address,
            row.hostname,
            row.incarnation,
            row.status,
        )
        for row in rows
    ]


def next_broker_id(session: Session) -> int:
    highest = session.scalar(select(func.max(BrokerMetadata.broker_id)))
    return (highest or 0) + 1


def save_broker(session: Session, row: StoredBroker) -> None:
    values = {
        "endpoint": row.endpoint,
        "raft_address": row.raft_address,
        "data_address": row.data_address,
        "hostname": row.hostname,
        "incarnation": row.incarnation,
        "status": row.status,
        "last_heartbeat": func.now(),
    }
    session.execute(
        insert(BrokerMetadata)
        .values(broker_id=row.broker_id, **values)
        .on_conflict_do_update(index_elements=[BrokerMetadata.broker_id], set_=values)
    )


def folders(session: Session) -> list[StoredFolder]:
    return [_folder(row) for row in session.scalars(select(DataFolderRow))]


def folder(session: Session, incarnation: str) -> StoredFolder | None:
    row = session.get(DataFolderRow, incarnation)
    return None if row is None else _folder(row)


def _folder(row: DataFolderRow) -> StoredFolder:
    return StoredFolder(row.incarnation, row.broker_id, row.starts, row.session, row.sequence)


def save_folder(session: Session, known: StoredFolder) -> None:
    """Its broker must be stored. The oldest ones are forgotten: a broker without a disk has one for every start."""
    values = {
        "broker_id": known.broker_id,
        "starts": known.starts,
        "session": known.session,
        "sequence": known.sequence,
        "last_seen": func.now(),
    }
    session.execute(
        insert(DataFolderRow)
        .values(incarnation=known.incarnation, **values)
        .on_conflict_do_update(index_elements=[DataFolderRow.incarnation], set_=values)
    )
    latest = (
        select(DataFolderRow.incarnation)
        .where(DataFolderRow.broker_id == known.broker_id)
        .order_by(DataFolderRow.last_seen.desc())
        .limit(FOLDERS_PER_BROKER)
    )
    session.execute(
        delete(DataFolderRow).where(
            DataFolderRow.broker_id == known.broker_id, DataFolderRow.incarnation.not_in(latest)
        )
    )


def set_broker_status(session: Session, broker_id: int, status: str) -> None:
    session.execute(update(BrokerMetadata).where(BrokerMetadata.broker_id == broker_id).values(status=status))


def stamp_brokers(session: Session, broker_ids: Iterable[int], when: datetime) -> None:
    session.execute(
        update(BrokerMetadata).where(BrokerMetadata.broker_id.in_(list(broker_ids))).values(last_heartbeat=when)
    )


def managers(session: Session) -> list[tuple[str, str, bool]]:
    """Name, endpoint, and whether it is active."""
    rows = session.scalars(select(ManagerMetadata))
    return [(row.name, row.endpoint, row.status == "active") for row in rows]


def save_manager(session: Session, name: str, endpoint: str, status: str, when: datetime) -> None:
    values = {"endpoint": endpoint, "status": status, "last_heartbeat": when}
    session.execute(
        insert(ManagerMetadata)
        .values(name=name, **values)
        .on_conflict_do_update(index_elements=[ManagerMetadata.name], set_=values)
    )


def forget_managers(session: Session, names: Sequence[str]) -> None:
    session.execute(delete(ManagerMetadata).where(ManagerMetadata.name.in_(names)))
