"""Every single bit of a small store: what is wrong is noticed, or everything is right all the same."""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import pytest

from broker.storage.disk import StorageRefused
from broker.storage.entry import Corrupted
from broker.storage.group import Group
from broker.storage.journal_frame import headers_in
from broker.storage.partition_log import PartitionLog
from broker.storage.replay import stored_replica
from broker.storage.snapshot_files import group_folder
from broker.storage.store import ASIDE
from tests.fault_disk import FaultDisk
from tests.logs import plain_all
from tests.unit.storage.store_model import Mismatch, ModelGroup, check, expect
from tests.unit.storage.store_run import StoreRun
from tests.unit.storage.store_script import Op, write_round

ROUNDS = [
    [Op("append", 0), Op("append", 1), Op("value", 0, 1)],
    [Op("append", 0, 1, 2), Op("append", 1, 1, 1)],
    [Op("append", 0, 1, 1), Op("vote", 1, 2)],
    [Op("replace", 0, 1, 1), Op("append", 1, 1, 2)],
    [Op("cut", 0, 1, 0), Op("append", 1, 1, 1)],
    [Op("append", 0, 1, 2)],
    [Op("append", 1, 0, 1), Op("append", 0, 1, 1)],
    [Op("cut", 1, 3, 1)],
]


def small_store(with_upkeep: bool) -> StoreRun:
    """A few KB: entries in files and in the journal only, segments of both that ended, snapshots."""
    run = StoreRun(FaultDisk(), segment_bytes=16 << 10, file_bytes=400, max_segments=3)
    for number, ops in enumerate(ROUNDS):
        write_round(run, ops)
        if with_upkeep or number == 4:
            run.upkeep_once()
            run.write()
    write_round(run, [Op("append", 0, 1, 1), Op("append", 1, 1, 1)])
    write_round(run, [Op("value", 1, 1)])
    run.check()
    run.disk = run.disk.copy()
    return run


def bits(disk: FaultDisk) -> Iterator[tuple[str, int]]:
    """Of all frames but the last, of a few places in the padding behind them, and of all other files."""
    frames = [(name, at, header) for name in journal_files(disk) for at, header in headers_in(disk.contents(name))]
    frames.sort(key=lambda place: place[2].sequence)
    for name, at, header in frames[:-1]:
        end = at + header.size_bytes
        yield from ((name, bit) for bit in range(at * 8, end * 8))
        yield from ((name, byte * 8) for byte in range(end, at + header.pages_bytes, 997))
    for name in data_files(disk):
        yield from ((name, bit) for bit in range(len(disk.contents(name)) * 8))


def journal_files(disk: FaultDisk) -> list[str]:
    return [name for name in disk.names() if name.startswith("journal-")]


def data_files(disk: FaultDisk) -> list[str]:
    return [
        f"partitions/{folder}/{name}"
        for folder in disk.names("partitions")
        for name in disk.names(f"partitions/{folder}")
    ]


def outcome(template: StoreRun, disk: FaultDisk) -> str:
    """Raises Mismatch when something wrong is taken for right."""
    run = template.fork(disk)
    before = {name: disk.contents(name) for name in data_files(disk)}
    try:
        run.open()
    except StorageRefused:
        return "refused"
    logs = list(run.store.logs.values())
    suspect = [log for log in logs if log.group.suspect is not None]
    if run.store.incarnation != template.incarnation:
        expect(len(suspect) == len(logs), "the journal is damaged, and a replica is not suspect")
        found = "journal damaged"
    elif suspect:
        found = "suspect"
    else:
        found = whole_outcome(run)
    if found not in ("harmless", "damage"):
        for log in logs:
            name = log.group.topic_id, log.group.partition_id
            check_readable(log, run.model.groups[name])
        check_kept(disk, before, logs)
    return found


def whole_outcome(run: StoreRun) -> str:
    try:
        check(run.store, run.model)
        for log in run.store.logs.values():
            scrub(log)
    except Corrupted:
        return "damage"
    except Mismatch:
        for log in run.store.logs.values():
            if stored_replica(run.store.disk, log).damage is not None:
                return "damage"
        raise
    return "harmless"


def scrub(log: PartitionLog) -> None:
    at: int | None = log.group.first_index
    while at is not None:
        at = log.scrub(at, 300)


def check_readable(log: PartitionLog, wanted: ModelGroup) -> None:
    """What a suspect replica shows is right."""
    group = log.group
    for index in range(group.first_index, min(group.hard.commit, log.tail.next_index - 1) + 1):
        with suppress(Corrupted):
            found = log.at_index(index)
            expect(found is not None and plain_all([found]) == list(wanted.since(index))[:1], f"entry {index} is wrong")


def check_kept(disk: FaultDisk, before: dict[str, bytes], logs: list[PartitionLog]) -> None:
    """No file with data of a suspect replica is gone, and none is shorter."""
    suspect = {group_folder(log.group.group_id): log.group for log in logs if log.group.suspect is not None}
    known = {group_folder(log.group.group_id) for log in logs}
    for name, data in before.items():
        folder, _, file = name.rpartition("/")
        places = [f"{ASIDE}/{aside}/{file}" for aside in disk.names(ASIDE)]
        if folder in suspect and is_needed(suspect[folder], file):
            places.append(name)
        elif folder in known:
            continue
        kept = [place for place in places if place.split("/")[-1] in disk.names(place.rpartition("/")[0])]
        expect(any(len(disk.contents(place)) >= len(data) for place in kept), f"{name} is gone or shorter")


def is_needed(group: Group, file: str) -> bool:
    return file.endswith(".log") or file == f"snapshot-{group.snapshot.file}"


SLICES = [pytest.param(first, 8, marks=(pytest.mark.exhaustive, pytest.mark.timeout(1200))) for first in range(8)]


@pytest.mark.parametrize(("first", "every"), [(3, 331), *SLICES])
@pytest.mark.parametrize("with_upkeep", [False, True])
def test_every_single_bit_is_noticed_or_harmless(first: int, every: int, with_upkeep: bool) -> None:
    template = small_store(with_upkeep)
    template.adopt_incarnation()
    assert outcome(template, template.disk.copy()) == "harmless"
    outcomes = Counter[str]()
    for number, (name, bit) in enumerate(bits(template.disk)):
        if number % every == first:
            disk = template.disk.copy()
            disk.flip(name, bit)
            try:
                outcomes[outcome(template, disk)] += 1
            except Exception as problem:
                raise AssertionError(f"{name}, byte {bit // 8}, bit {bit % 8}: {problem!r}") from problem
    assert sum(outcomes.values()) > 40_000 / every
    assert all(outcomes[kind] for kind in ("harmless", "damage", "suspect", "journal damaged")), outcomes
