"""A store on a fault disk, driven step by step on one thread, beside the model of what it must hold."""

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from uuid import UUID

import structlog

from broker.raft.configuration import GroupConfiguration, GroupId, MemberId
from broker.raft.dedupe import NOTHING_SEEN, DedupeSnapshot
from broker.raft.effects import Persist
from broker.raft.entry import Kind, LogEntry
from broker.raft.key_table import KEY_RECORD_BYTES
from broker.raft.snapshot import HardState, Snapshot
from broker.storage import upkeep as upkeep_module
from broker.storage import writer as writer_module
from broker.storage.entry import Corrupted, Tail
from broker.storage.group import Group, Settings
from broker.storage.journal import Journal
from broker.storage.partition_log import PartitionLog
from broker.storage.recovery import open_store
from broker.storage.round import Round
from broker.storage.snapshot_files import group_folder
from broker.storage.space import FreeSpace
from broker.storage.upkeep import Upkeep
from broker.storage.writer import Change, Owed, Save, Writer
from myqueue.protocol.batch import header_for
from myqueue.protocol.dedup_records import DedupRecord, encode_dedup_records
from tests.fault_disk import FaultDisk
from tests.unit.storage.store_model import (
    Mismatch,
    Model,
    ModelGroup,
    Name,
    Step,
    check,
    check_aside,
    check_no_strays,
    expect,
)

LOGGER = structlog.wrap_logger(structlog.PrintLogger(), wrapper_class=structlog.make_filtering_bound_logger(50))
ME = MemberId(1, 1)
BROKER_ID = 1
_MOST_WAITS = 60

# Nothing else happens meanwhile: upkeep runs on the same thread.
writer_module._FULL_DISK_PAUSE_S = writer_module._FULL_JOURNAL_PAUSE_S = 0.0
upkeep_module._FULL_DISK_PAUSE_S = 0.0


def name_of(number: int) -> Name:
    return UUID(int=number // 2 + 1), number % 2


def message(name: Name, tail: Tail, term: int, body: bytes, *, count: int = 1, keys: int = 0) -> LogEntry:
    dedup_records = tuple(DedupRecord(n, 5, n, tail.next_index.to_bytes(16, "big")) for n in range(min(keys, count)))
    batch = header_for(*name, body, count).pack() + body + encode_dedup_records(dedup_records)
    return LogEntry(
        tail.next_index,
        term,
        Kind.MESSAGES,
        tail.end_offset,
        tail.append_time + 1,
        count,
        None,
        dedup_records,
        batch,
    )


def noop(tail: Tail, term: int) -> LogEntry:
    return LogEntry(tail.next_index, term, Kind.NOOP, tail.end_offset, tail.append_time)


def table(number: int) -> DedupeSnapshot:
    return DedupeSnapshot(bytes([number % 251]) * KEY_RECORD_BYTES * number) if number else NOTHING_SEEN


class StoreRun:
    """`model` is what is acknowledged, `coming` what is submitted on top of it."""

    def __init__(
        self,
        disk: FaultDisk,
        *,
        segment_bytes: int = 32 << 10,
        file_bytes: int = 1500,
        max_segments: int = 4,
        max_segment_entries: int = 40,
    ) -> None:
        self.disk = disk
        self._sizes = (segment_bytes, file_bytes, max_segments, max_segment_entries)
        self.model = self.coming = Model()
        self._states: list[Model] = []  # after each step of what is submitted
        self._aside: dict[str, tuple[PartitionLog, dict[str, bytes]]] = {}
        self.incarnation: str | None = None
        self.damaged: list[str] = []
        self.opened = 0
        self.open()

    # The process

    def open(self) -> None:
        segment_bytes, file_bytes, max_segments, max_segment_entries = self._sizes
        journal = Journal(
            self.disk,
            segment_bytes=segment_bytes,
            max_segments=max_segments,
            max_segment_entries=max_segment_entries,
        )
        self.store = open_store(self.disk, journal, LOGGER, broker_id=BROKER_ID, segment_bytes=file_bytes, open_files=6)
        space = FreeSpace(self.disk.free_bytes, 0)
        self.writer = Writer(self.store, space, LOGGER, max_waiting=1000, max_waiting_bytes=1 << 30)
        self.upkeep = Upkeep(
            self.store, self.writer, LOGGER, scrub_interval_s=1e9, on_damage=lambda _, what: self.damaged.append(what)
        )
        self._on_written, self.writer.on_written = self.writer.on_written, self._wrote
        self._waits = 0
        self.opened += 1

    def _wrote(self) -> None:
        self._on_written()
        if not self.writer._waits_for_room:
            self._waits = 0
            return
        self._waits += 1
        expect(self._waits < _MOST_WAITS, "the writer waits for room, and upkeep makes none")
        self.upkeep_once()

    def fork(self, disk: FaultDisk) -> "StoreRun":
        """What this one expects, of another disk; not opened."""
        other = copy(self)
        other.disk = disk
        other.damaged = []
        return other

    def restart(self) -> None:
        """After a stop of any kind: what was acknowledged is there, and some first steps of what was not."""
        self.open()
        self.adopt()

    def adopt(self) -> None:
        """Takes over what is found, if it may be so."""
        problems: list[str] = []
        for wanted in (self.model, *reversed(self._states)):
            try:
                found = check(self.store, self._with_aside(wanted))
                check_aside(self.disk, found)
            except (Mismatch, Corrupted) as problem:
                problems.append(str(problem))
            else:
                break
        else:
            raise Mismatch("; or ".join(dict.fromkeys(problems)))
        check_no_strays(self.store, self.disk)
        expect(self.incarnation in (None, self.store.incarnation), "another incarnation")
        expect(not self.damaged, str(self.damaged))
        self.incarnation = self.store.incarnation
        groups = {name: replace(group, requested=()) for name, group in found.groups.items()}
        self.model = self.coming = replace(found, groups=groups)
        self._states, self._aside = [], {}

    def adopt_incarnation(self) -> None:
        self.incarnation = self.store.incarnation

    def check(self) -> None:
        """While it runs and nothing waits."""
        self.model = self.coming = check(self.store, self.model)
        expect(not self.damaged, str(self.damaged))

    def write(self) -> None:
        """What was submitted; it is acknowledged when this returns."""
        self.writer.write_waiting()
        self.model = self._with_aside(self.coming)
        self._aside = {}
        for log in self.store.logs.values():
            name = log.group.topic_id, log.group.partition_id
            held = self.model.groups[name]
            stored = [snapshot for snapshot in held.requested if snapshot.index <= log.group.snapshot.index]
            held = replace(held, stored_commit=log.group.hard.commit)
            if stored:
                held = replace(held, snapshot=stored[-1], requested=held.requested[len(stored) :])
            self.model = self.model.with_group(name, held)
        self.coming, self._states = self.model, []

    def upkeep_once(self) -> None:
        try:
            self.upkeep.run_once()
        finally:  # files of a log that is about to be dropped may have been cut
            for aside, (log, files) in self._aside.items():
                self._aside[aside] = log, self._synced_files(log) or files

    def settle(self) -> None:
        """Everything that is left to upkeep is done."""
        for _ in range(3):
            self.upkeep.run_once()
            self.write()
        check_aside(self.disk, self.model)
        check_no_strays(self.store, self.disk)
        for held in self.model.groups.values():
            expect(not held.requested, f"snapshots are not stored: {held.requested}")

    # Changes, which `write` writes

    def log(self, name: Name) -> PartitionLog:
        held = self.store.logs.values()
        return next(log for log in held if (log.group.topic_id, log.group.partition_id) == name)

    def is_dropping(self, name: Name) -> bool:
        return self.coming.groups[name].incarnation != self.model.groups[name].incarnation

    def _step(self, step: Step) -> None:
        self.coming = step(self.coming)
        self._states.append(self.coming)

    def _change(self, name: Name, **changes: object) -> None:
        group = replace(self.coming.groups[name], **changes)  # type: ignore[arg-type]
        self._step(lambda model: model.with_group(name, group))

    def set_value(self, name: str, value: str) -> None:
        self.writer.submit(Change(lambda round_: self.store.set_value(round_, name, value)))
        self._step(lambda model: replace(model, values={**model.values, name: value}))

    def new(self, name: Name, incarnation: int = 1) -> None:
        held = ModelGroup(Settings(f"topic-{name[0].int}"), incarnation)

        def insert(round_: Round) -> None:
            self.store.open_log(round_, self._group(name, held))

        self.writer.submit(Change(insert))
        self._step(lambda model: model.with_group(name, held))

    def _group(self, name: Name, held: ModelGroup) -> Group:
        return Group(self.store.new_group_id(), *name, held.incarnation, held.settings, HardState())

    def drop(self, name: Name, aside: str | None = None) -> None:
        log = self.log(name)
        self.writer.submit(Change(lambda round_: self.store.drop_log(round_, log, aside=aside)))
        self._dropped(name, log, aside)

    def _dropped(self, name: Name, log: PartitionLog, aside: str | None) -> None:
        if aside is not None:
            if self.coming.groups[name].begin == self.model.groups[name].begin:  # else it starts anew in this round
                self._aside[aside] = log, self._synced_files(log)
            self._step(lambda model: replace(model.without(name), aside={**model.aside, aside: {}}))
        else:
            self._step(lambda model: model.without(name))

    def rebuild(self, name: Name, aside: str) -> None:
        log, old = self.log(name), self.coming.groups[name]
        held = ModelGroup(old.settings, old.incarnation + 1)

        def recreate(round_: Round) -> None:
            self.store.drop_log(round_, log, aside=aside)
            self.store.open_log(round_, self._group(name, held))

        self.writer.submit(Change(recreate))
        self._dropped(name, log, aside)
        self._step(lambda model: model.with_group(name, held))

    def set_settings(self, name: Name, settings: Settings) -> None:
        log = self.log(name)

        def update(round_: Round) -> None:
            round_.set_group(log, replace(round_.group_of(log), settings=settings))

        self.writer.submit(Change(update))
        self._change(name, settings=settings)

    def persist(
        self,
        name: Name,
        entries: Sequence[LogEntry] = (),
        *,
        term: int | None = None,
        vote: MemberId | None = None,
        commit: int | None = None,
        snapshot: Snapshot | None = None,
    ) -> None:
        """A new term, entries that follow or replace others, a retention cut."""
        held = self.coming.groups[name]
        if term is not None:
            self._change(name, term=term, vote=vote)
        for entry in entries:
            changed = self.coming.groups[name].with_entry(entry)
            self._step(lambda model, changed=changed: model.with_group(name, changed))  # type: ignore[misc]
        now = self.coming.groups[name]
        self._change(
            name,
            commit=max(held.commit, commit or 0),
            requested=(*now.requested, snapshot) if snapshot is not None else now.requested,
        )
        now = self.coming.groups[name]
        truncate_from = entries[0].index if entries and entries[0].index < held.next_index else None
        hard = HardState(now.term, now.vote, now.commit)
        self._save(name, Persist(GroupId(*name), hard, truncate_from, snapshot, tuple(entries)))

    def _save(self, name: Name, persist: Persist) -> None:
        self.writer.submit(Save([Owed(self.log(name), persist)]))

    def append(
        self,
        name: Name,
        sizes: Sequence[int],
        *,
        term: int | None = None,
        vote: MemberId | None = None,
        at: int | None = None,
        keys: int = 0,
    ) -> None:
        """Messages of these sizes, 0 for an entry without; from index `at` on in place of what is there."""
        held = self.coming.groups[name]
        entry_term = held.term if term is None else term
        tail = held.tail_before(held.next_index if at is None else at)
        entries: list[LogEntry] = []
        for number, size in enumerate(sizes):
            if size:
                body = bytes([tail.next_index % 251, entry_term % 251, number % 251]) * size
                entries.append(message(name, tail, entry_term, body[:size], count=1 + size % 3, keys=keys))
            else:
                entries.append(noop(tail, entry_term))
            held = held.with_entry(entries[-1])
            tail = held.tails[-1]
        self.persist(name, entries, term=term, vote=vote)

    def cut(self, name: Name, start_index: int, index: int, keys: int = 3) -> None:
        """Retention: the log starts there, with a snapshot of what is applied at `index`."""
        held = self.coming.groups[name]
        configuration = GroupConfiguration((ME, MemberId(2, index)))
        snapshot = Snapshot(
            start_index,
            held.tail_before(start_index).end_offset,
            held.term_before(start_index),
            index,
            configuration,
            index,
            table(keys),
        )
        self.persist(name, commit=index, snapshot=snapshot)

    def install(self, name: Name, start_index: int, index: int, sizes: Sequence[int] = (), keys: int = 2) -> None:
        """The leader's snapshot replaces everything."""
        held = self.coming.groups[name]
        begin = Tail(start_index, start_index * 10, 0, 0, 0)
        snapshot = Snapshot(
            start_index, begin.end_offset, held.term, index, GroupConfiguration((ME,)), index, table(keys)
        )
        commit = start_index - 1
        again = replace(
            held,
            begin=begin,
            begin_term=held.term,
            entries=(),
            tails=(),
            snapshot=snapshot,
            requested=(),
            commit=commit,
        )
        again = replace(again, stored_commit=commit)
        self._step(lambda model: model.with_group(name, again))
        tail, entries, now = begin, list[LogEntry](), again
        for size in sizes:
            entries.append(message(name, tail, held.term, b"i" * size))
            now = now.with_entry(entries[-1])
            tail = now.tails[-1]
            self._step(lambda model, now=now: model.with_group(name, now))  # type: ignore[misc]
        hard = HardState(held.term, held.vote, commit)
        self._save(name, Persist(GroupId(*name), hard, 0, snapshot, tuple(entries)))

    # Files of dropped groups

    def _synced_files(self, log: PartitionLog) -> dict[str, bytes]:
        files = self.disk.synced_files(group_folder(log.group.group_id))
        return {name: data for name, data in files.items() if name.endswith(".log")}

    def _with_aside(self, model: Model) -> Model:
        aside = {name: self._aside[name][1] if name in self._aside else files for name, files in model.aside.items()}
        return replace(model, aside=aside)
