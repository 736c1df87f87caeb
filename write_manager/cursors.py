"""Claims of all consumers: serialised per consumer in memory, stored in groups before they are answered."""

import threading
from collections.abc import Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field

from db import cursors
from db.cursors import ConsumerRow, CursorRow
from db.engine import Primary
from myqueue.protocol.errors import ConsumerNotFound, MetadataUnavailable, MyQueueError
from myqueue.protocol.token import Token
from service.logs import Log
from write_manager.claims import Claimed, ConsumerState, Cursor, recent_from_rows

FLUSH_TIMEOUT_S = 4.0


@dataclass(slots=True)
class Entry:
    state: ConsumerState
    lock: threading.Lock = field(default_factory=threading.Lock)


class Cursors:
    """A claim is answered only after the row that says so is stored: a restart never hands out a message twice."""

    def __init__(self, primary: Primary, log: Log) -> None:
        self._primary = primary
        self._log = log
        self._entries: dict[int, Entry] = {}
        self._loading = threading.Lock()
        self._flush = threading.Condition()
        self._dirty: set[int] = set()
        self._waiting: list[Future[Token | None]] = []
        self._stopping = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="cursors", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        with self._flush:
            self._stopping = True
            self._flush.notify()
        if self._thread is not None:
            self._thread.join(FLUSH_TIMEOUT_S)
            self._thread = None

    def claim(
        self, consumer_id: int, identity: str, partition_id: int | None, known: Mapping[int, tuple[int, int]]
    ) -> tuple[Claimed, Token | None] | None:
        entry = self._entry(consumer_id)
        with entry.lock:
            claimed = entry.state.claim(identity, partition_id, known)
            if claimed is None:
                return None
            claimed = Claimed(claimed.partition_id, claimed.offset, claimed.attempt)
            stored = self._mark_dirty(consumer_id)
        try:
            return claimed, self._await(stored)
        except MyQueueError:
            self._take_back(consumer_id, identity, claimed.attempt)
            raise

    def _take_back(self, consumer_id: int, identity: str, attempt: int) -> None:
        """The claim was not answered, so the message stays unread; stored as soon as PostgreSQL takes writes again."""
        entry = self._entry(consumer_id)
        with entry.lock:
            if entry.state.give_back(identity, attempt):
                self._mark_dirty(consumer_id)

    def give_back(self, consumer_id: int, identity: str, attempt: int) -> Claimed | None:
        """The claim that was given back; None when it was not this attempt's to give."""
        entry = self._entry(consumer_id)
        with entry.lock:
            claimed = entry.state.give_back(identity, attempt)
            if claimed is None:
                return None
            stored = self._mark_dirty(consumer_id)
        self._await(stored)
        return claimed

    def positions(self, consumer_id: int) -> dict[int, tuple[int, int]]:
        """For each partition the cursor, and how many messages below it were given back."""
        entry = self._entry(consumer_id)
        with entry.lock:
            return {p: (c.offset, len(c.given_back)) for p, c in entry.state.cursors.items()}

    def _entry(self, consumer_id: int) -> Entry:
        entry = self._entries.get(consumer_id)
        if entry is not None:
            return entry
        with self._loading:
            if consumer_id not in self._entries:
                with self._primary.reading() as session:
                    row = cursors.load(session, consumer_id)
                if row is None:
                    raise ConsumerNotFound()
                state = ConsumerState(
                    {c.partition_id: Cursor(c.offset, list(c.given_back), c.skipped) for c in row.cursors},
                    row.next_partition,
                    recent_from_rows(row.recent_claims),
                )
                self._entries[consumer_id] = Entry(state)
            return self._entries[consumer_id]

    def _mark_dirty(self, consumer_id: int) -> "Future[Token | None]":
        stored: Future[Token | None] = Future()
        with self._flush:
            self._dirty.add(consumer_id)
            self._waiting.append(stored)
            self._flush.notify()
        return stored

    def _await(self, stored: "Future[Token | None]") -> Token | None:
        try:
            return stored.result(FLUSH_TIMEOUT_S)
        except FutureTimeout:
            raise MetadataUnavailable(outcome="unknown") from None

    def _run(self) -> None:
        while True:
            with self._flush:
                while not self._dirty and not self._stopping:
                    self._flush.wait()
                if not self._dirty:
                    return
                dirty, self._dirty = self._dirty, set()
                waiting, self._waiting = self._waiting, []
            self._store(dirty, waiting)

    def _store(self, dirty: set[int], waiting: "list[Future[Token | None]]") -> None:
        rows, taken = [], {}
        for consumer_id in sorted(dirty):
            entry = self._entries[consumer_id]
            with entry.lock:
                taken[consumer_id], entry.state.moved = entry.state.moved, set()
                rows.append(_row(consumer_id, entry.state, taken[consumer_id]))
        try:
            with self._primary.transaction() as transaction:
                cursors.save(transaction.session, rows)
        except Exception as error:  # noqa: BLE001 every waiter must hear of it, whatever it was
            self._log.warning("cursors not stored", error=str(error), consumers=len(rows))
            for consumer_id, partitions in taken.items():
                entry = self._entries[consumer_id]
                with entry.lock:
                    entry.state.moved |= partitions
            failure = error if isinstance(error, MyQueueError) else MetadataUnavailable(outcome="unknown")
            for stored in waiting:
                stored.set_exception(failure)
            return
        for stored in waiting:
            stored.set_result(transaction.token)


def _row(consumer_id: int, state: ConsumerState, moved: set[int]) -> ConsumerRow:
    return ConsumerRow(
        consumer_id,
        state.next_partition,
        state.recent_rows(),
        [
            CursorRow(p, state.cursors[p].offset, tuple(state.cursors[p].given_back), state.cursors[p].skipped)
            for p in sorted(moved)
        ],
    )
