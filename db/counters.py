"""Ids that count from 0 without holes, taken inside the transaction that uses them."""

from sqlalchemy import text
from sqlalchemy.orm import Session


def take_ids(session: Session, kind: str, count: int = 1) -> int:
    """The first of `count` new ids. The row stays locked until the transaction ends."""
    first: int = session.execute(
        text(
            "INSERT INTO id_counter (kind, next_id) VALUES (:kind, :count) ON CONFLICT (kind) DO UPDATE"
            " SET next_id = id_counter.next_id + :count RETURNING next_id - :count"
        ),
        {"kind": kind, "count": count},
    ).scalar_one()
    return first


def next_id(session: Session, kind: str) -> int:
    """The id that would be taken next."""
    found = session.execute(text("SELECT next_id FROM id_counter WHERE kind = :kind"), {"kind": kind}).scalar()
    return 0 if found is None else int(found)
