"""Readers beside the writer and the upkeep thread: what they find is right, whatever moves under them."""

import random
import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

from broker.raft.snapshot import HardState
from broker.storage.memory_disk import MemoryDisk
from broker.storage.open_files import OpenFiles
from broker.storage.partition_log import PartitionLog
from tests.logs import GROUP, cut_before, messages, write

ROUNDS = 1500


def body_of(index: int, term: int) -> bytes:
    return b"%d in %d;" % (index, term) * (1 + index % 40)


def committed_of(log: PartitionLog) -> int:
    return log.group.hard.commit


def check_run(log: PartitionLog, chance: random.Random) -> None:
    tail, group = log.tail, log.group
    if tail.next_index == group.first_index:
        return
    first = chance.randrange(group.first_index, tail.next_index)
    found = log.from_index(first, chance.choice((0, 2000, 20_000)))
    assert [entry.index for entry in found] == list(range(first, first + len(found)))
    for before, entry in pairwise(found):
        assert entry.term >= before.term
    for entry in found:
        assert bytes(entry.body) == body_of(entry.index, entry.term)


def check_offset(log: PartitionLog, chance: random.Random) -> None:
    """Only what will not be replaced is read by offset."""
    group, last = log.group, committed_of(log)
    if last < group.first_index:
        return
    end = log.tail_at(last).end_offset
    assert end > group.start_offset
    offset = chance.randrange(group.start_offset, end)
    entry = log.at_offset(offset)
    if entry is None:
        assert offset < log.group.start_offset
    else:
        assert entry.base_offset == offset
        assert bytes(entry.body) == body_of(entry.index, entry.term)


def check_search(log: PartitionLog, chance: random.Random) -> None:
    group, end = log.group, committed_of(log) + 1
    if end <= group.first_index:
        return
    index = chance.randrange(group.first_index, end)
    fields = log.fields(index)
    if fields is None:
        assert index < log.group.first_index
        return
    found = log.first_appended_since(fields[1], end)
    assert found <= max(index, log.group.first_index)


def test_readers_find_what_is_there_while_everything_moves() -> None:
    files = OpenFiles(MemoryDisk(None), limit=2)
    log = PartitionLog(files, GROUP, segment_bytes=6000)
    log.recover(None, None)
    done = threading.Event()
    failures: list[BaseException] = []
    reads = [0, 0, 0]

    def run(step: Callable[[random.Random], None], seed: int) -> None:
        chance = random.Random(seed)
        try:
            while not done.is_set():
                step(chance)
        except BaseException as error:  # noqa: BLE001 -- raised by the test
            failures.append(error)
            done.set()

    def upkeep(chance: random.Random) -> None:
        log.flush(chance.choice((1, 3000, 100_000)))
        if chance.random() < 0.2:
            log.sync()
        if chance.random() < 0.3:
            log.remove_below()

    def reading(check: Callable[[PartitionLog, random.Random], None], number: int) -> Callable[[random.Random], None]:
        def read(chance: random.Random) -> None:
            check(log, chance)
            reads[number] += 1

        return read

    steps = [upkeep, *(reading(check, n) for n, check in enumerate((check_run, check_offset, check_search)))]
    threads = [threading.Thread(target=run, args=(step, seed)) for seed, step in enumerate(steps)]
    for thread in threads:
        thread.start()
    chance = random.Random(9)
    term = 1
    try:
        for number in range(ROUNDS):
            first = log.tail.next_index
            if chance.random() < 0.2:
                term += 1
                first = max(committed_of(log) + 1, first - chance.randrange(1, 50))
            tail = log.tail_before(first)
            entries = []
            for _ in range(chance.randrange(1, 8)):
                entries.append(messages(tail, body_of(tail.next_index, term), term=term, time=number))
                tail = tail.after(entries[-1])
            write(log, entries)
            commit = max(committed_of(log), log.tail.next_index - 40)
            log.set_group(replace(log.group, hard=HardState(term, None, commit)))
            if chance.random() < 0.05 and commit > log.group.first_index + 300:
                cut_before(log, commit - 200)
            if done.is_set():
                break
    finally:
        done.set()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]
    assert min(reads) > 20
    log.sync()
    log.remove_below()
    assert f"{0:020d}-1.log" not in files.disk.names(log.folder)
