"""The proof is put to the proof: mistakes that are planted in the store are found by the tests of its promises."""

import random
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import replace

import pytest
from crc32c import crc32c

from broker.raft.dedupe import NOTHING_SEEN, DedupeSnapshot
from broker.raft.dedupe_codec import decode_dedupe, encode_dedupe
from broker.raft.snapshot import Snapshot
from broker.storage import journal_recovery, snapshot_files
from broker.storage import upkeep as upkeep_module
from broker.storage.disk import Disk, DiskError
from broker.storage.entry import Corrupted
from broker.storage.group import Group, SnapshotState
from broker.storage.journal import Journal
from broker.storage.journal_frame import HEADER_BYTES, Frame, FrameHeader, headers_in
from broker.storage.journal_recovery import Generation, Recovery
from broker.storage.journal_slots import Slot
from broker.storage.partition_log import PartitionLog
from broker.storage.record import Buffer, ParsedRecord, Record, RecordKind, parse
from broker.storage.recovery import ReplayedLog, ReplayedState
from broker.storage.round import Round
from broker.storage.segments import Segments
from broker.storage.store import Store
from broker.storage.upkeep import Upkeep
from tests.fault_disk import Fault, FaultDisk, PowerLoss
from tests.unit.storage.store_model import Mismatch
from tests.unit.storage.store_run import StoreRun
from tests.unit.storage.store_script import KINDS, Op, submit, write_round
from tests.unit.storage.test_store_damage import bits, journal_files, outcome, small_store
from tests.unit.storage.test_store_power_loss import (
    CALLS_OF_A_START,
    calls_of_script,
    go_on,
    run_script,
    until_power_loss,
)

pytestmark = pytest.mark.slow

_RUNS = 400
_FOUND = (Mismatch, Corrupted, ValueError, FileNotFoundError, KeyError)

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]
Check = Callable[[], None]


def random_runs() -> None:
    """What the model test does, with the same seeds every time."""
    for seed in range(_RUNS):
        chance = random.Random(seed)
        run = StoreRun(FaultDisk(), segment_bytes=16 << 10, file_bytes=700, max_segment_entries=15)
        for _ in range(25):
            random_step(run, chance)


def random_step(run: StoreRun, chance: random.Random) -> None:
    ops = [
        Op(chance.choice(("append", "append", *KINDS)), chance.randrange(4), chance.randrange(10), chance.randrange(10))
        for _ in range(chance.randint(1, 4))
    ]
    kind = chance.randrange(7)
    if kind == 6:
        for op in ops:
            submit(run, op)
        run.upkeep_once()
        run.write()
        return
    if kind in (0, 1, 2):
        write_round(run, ops)
        if kind:
            run.upkeep_once()
            run.write()
        return
    run.disk.faults = {run.disk.calls + chance.randint(1, 25): Fault.POWER_LOSS}
    with suppress(PowerLoss):
        write_round(run, ops)
        run.upkeep_once()
        run.write()
    run.disk.faults.clear()
    if kind == 3:
        run.disk.after_kill()
    else:
        run.disk = run.disk.after_any_power_loss(chance)
    if kind == 5:
        run.disk.faults = {run.disk.calls + chance.randint(1, 25): Fault.POWER_LOSS}
        with suppress(PowerLoss):
            run.open()
        run.disk = run.disk.after_any_power_loss(chance)
    run.restart()


def crashes() -> None:
    """Some of the calls of the script."""
    calls = list(range(CALLS_OF_A_START + 1, calls_of_script(), 3))
    random.Random(5).shuffle(calls)
    for call in calls:
        run = until_power_loss(call)
        for disk in (run.disk.after_power_loss(), run.disk.copy()):
            found = run.fork(disk)
            found.restart()
            go_on(found)


def full_disks() -> None:
    for call in range(CALLS_OF_A_START + 1, calls_of_script(), 11):
        disk = FaultDisk()
        run = StoreRun(disk)
        disk.faults = dict.fromkeys(range(call, call + 3), Fault.NO_SPACE)
        with suppress(DiskError):
            run_script(run, settles=False)
            disk.faults.clear()
            run.settle()


def flips() -> None:
    for with_upkeep in (False, True):
        template = small_store(with_upkeep)
        template.adopt_incarnation()
        chosen = list(bits(template.disk))
        random.Random(5).shuffle(chosen)
        for name, bit in chosen[:1000]:
            disk = template.disk.copy()
            disk.flip(name, bit)
            outcome(template, disk)


def bad_heads() -> None:
    """A process is killed during a write, the next one begins a segment, power is lost, and its head turns bad."""
    run = StoreRun(FaultDisk())
    write_round(run, [Op("append", 0)])
    run.disk.faults = {run.disk.calls + 1: Fault.POWER_LOSS}
    with suppress(PowerLoss):
        write_round(run, [Op("append", 0, 1, 1)])
    run.disk.after_kill()
    run.restart()
    write_round(run, [Op("append", 0, 1, 1)])
    run.disk = run.disk.after_power_loss()
    segment = run.store.journal.segment
    for name in journal_files(run.disk):
        header = next((h for at, h in headers_in(run.disk.contents(name)) if at == 0), None)
        if header is not None and header.segment == segment:
            run.disk.flip(name, 99)
    run.restart()


def skip_the_last_frame(patch: Patch) -> None:
    written = Journal._written

    def skipping(self: Journal, slot: Slot, parts: Sequence[Buffer], at: int) -> None:
        if self._recovery is None or not isinstance(parts[0], memoryview):
            written(self, slot, parts, at)

    patch.setattr(Journal, "_written", skipping)


def release_too_early(patch: Patch) -> None:
    patch.setattr(Store, "replay_from", lambda self: None)


def do_not_cut_a_suffix(patch: Patch) -> None:
    patch.setattr(Segments, "cut", lambda self, index: None)


def do_not_cut_a_suffix_in_replay(patch: Patch) -> None:
    def add(self: ReplayedLog, record: Record, parsed: ParsedRecord, segment: int) -> None:
        self.first = self.first or parsed.entry_index
        if parsed.entry_index == self.first + len(self.records):
            self.records.append((record, parsed, segment))

    patch.setattr(ReplayedLog, "add", add)


def unlink_before_the_snapshot_counts(patch: Patch) -> None:
    write = Upkeep._write_snapshot

    def writing(self: Upkeep, log: PartitionLog, snapshot: Snapshot) -> None:
        write(self, log, snapshot)
        if snapshot.index > log.group.snapshot.index:
            log._segments.remove_below(min(snapshot.start_index, snapshot.index + 1))

    patch.setattr(Upkeep, "_write_snapshot", writing)


def name_a_snapshot_before_it_is_synced(patch: Patch) -> None:
    def unsynced(disk: Disk, group_id: int, snapshot: Snapshot) -> SnapshotState:
        state = SnapshotState(snapshot.index, snapshot.configuration, snapshot.configuration_index)
        if snapshot.dedupe == NOTHING_SEEN:
            return state
        data = encode_dedupe(snapshot.dedupe)
        number = max(1, snapshot.index)
        file = disk.open(f"{snapshot_files.group_folder(group_id)}/snapshot-{number}", create=True)
        file.write([data], 0)
        return replace(state, file=number, file_crc=crc32c(data))

    patch.setattr(upkeep_module, "write_snapshot", unsynced)


def overlook_damage_of_the_journal(patch: Patch) -> None:
    frames_of = Recovery._frames_of

    def overlooking(self: Recovery, generation: Generation, stop: int | None) -> Generator[Frame, None, None]:
        yield from frames_of(self, generation, stop)

    patch.setattr(Recovery, "_frames_of", overlooking)


def trust_the_headers_of_records(patch: Patch) -> None:
    patch.setattr(journal_recovery, "records_of", unchecked_records)


def unchecked_records(data: bytes, at: int, header: FrameHeader, *, with_bodies: bool) -> list[Record]:
    view, found = memoryview(data), list[Record]()
    at += HEADER_BYTES
    for _ in range(header.records):
        parsed = parse(data, at)
        body_at, end = at + parsed.header_bytes, at + parsed.size_bytes
        found.append(Record(RecordKind(parsed.kind), parsed.group, view[at:body_at], view[body_at:end]))
        at = end
    return found


def trust_tables(patch: Patch) -> None:
    def unchecked(disk: Disk, group: Group) -> DedupeSnapshot:
        file = disk.open(f"{snapshot_files.group_folder(group.group_id)}/snapshot-{group.snapshot.file}")
        return decode_dedupe(file.read(0, file.size_bytes))

    patch.setattr(snapshot_files, "_dedupe", unchecked)


def say_synced_without_a_sync(patch: Patch) -> None:
    patch.setattr(Segments, "sync", lambda self: None)


def forget_what_was_to_be_kept_aside(patch: Patch) -> None:
    drop = ReplayedState._drop
    patch.setattr(ReplayedState, "_drop", lambda self, dropped: drop(self, dropped._replace(aside=None)))


def write_about_dropped_logs(patch: Patch) -> None:
    patch.setattr(Round, "holds", lambda self, log: True)


def forget_a_snapshot_without_room(patch: Patch) -> None:
    patch.setattr(Store, "request_again", lambda self, request: None)


def leave_tables_without_room(patch: Patch) -> None:
    patch.setattr(Store, "abandoned", lambda self, group_id: None)


def replay_without_positions(patch: Patch) -> None:
    """The files are taken to be synced as far as they go."""
    patch.setattr(ReplayedLog, "drop_stored", lambda self, position: self.records.clear())


def forget_votes(patch: Patch) -> None:
    set_group = Round.set_group

    def forgetting(self: Round, log: PartitionLog, group: Group) -> None:
        if group.hard.vote == log.group.hard.vote:
            set_group(self, log, group)

    patch.setattr(Round, "set_group", forgetting)


PLANTED: list[tuple[Plant, Check]] = [
    (skip_the_last_frame, bad_heads),
    (release_too_early, crashes),
    (do_not_cut_a_suffix, crashes),
    (do_not_cut_a_suffix_in_replay, crashes),
    (unlink_before_the_snapshot_counts, crashes),
    (name_a_snapshot_before_it_is_synced, crashes),
    (say_synced_without_a_sync, crashes),
    (replay_without_positions, crashes),
    (forget_votes, crashes),
    (forget_what_was_to_be_kept_aside, crashes),
    (write_about_dropped_logs, random_runs),
    (forget_a_snapshot_without_room, full_disks),
    (leave_tables_without_room, full_disks),
    (overlook_damage_of_the_journal, flips),
    (trust_the_headers_of_records, flips),
    (trust_tables, flips),
]


@pytest.mark.parametrize(("plant", "check"), PLANTED, ids=lambda value: value.__name__)
def test_it_is_found(plant: Plant, check: Check, monkeypatch: Patch) -> None:
    plant(monkeypatch)
    with pytest.raises(_FOUND):
        check()


def test_nothing_is_found_where_nothing_is_planted() -> None:
    """The others run in their own tests."""
    bad_heads()
    full_disks()
