"""Changes of a store as small values, so that tests can draw them, and a script of 30 rounds that makes all of them."""

from collections.abc import Callable
from typing import NamedTuple

from broker.raft.configuration import MemberId
from broker.storage.group import Settings
from tests.unit.storage.store_run import StoreRun, name_of

SIZES = (0, 1, 40, 300, 900)
KINDS = ("append", "replace", "vote", "cut", "install", "settings", "value", "drop", "rebuild", "large")


class Op(NamedTuple):
    """What it does to which partition; the numbers choose among what is possible then."""

    kind: str
    partition: int = 0
    first: int = 0
    second: int = 0


def submit(run: StoreRun, op: Op) -> None:
    """A partition that is not there is opened, whatever else was to happen to it."""
    kind, partition, first, second = op
    name = name_of(partition)
    held = run.coming.groups.get(name)
    if kind == "value":
        run.set_value(f"name-{partition}", f"value-{first}")
        return
    if held is None:
        if name not in run.model.groups:
            run.new(name, incarnation=1 + len(run.coming.former) + first)
        return
    if name not in run.model.groups or run.is_dropping(name):
        return  # opened or dropped by this round: there is no log to write to
    last = held.next_index - 1
    if kind == "append":
        sizes = [SIZES[(first + n) % len(SIZES)] for n in range(1 + second % 4)]
        run.append(name, sizes, term=max(1, held.term), vote=held.vote, keys=first % 3)
    elif kind == "large":
        run.append(name, [1500] * (4 + second % 6), term=held.term + 1)
    elif kind == "replace" and last > max(held.commit, held.first_index - 1):
        at = last - second % (last - max(held.commit, held.first_index - 1))
        run.append(name, [SIZES[first % len(SIZES)]] * (1 + first % 2), at=at, term=held.term + 1)
    elif kind == "vote":
        run.persist(name, term=held.term + 1, vote=MemberId(2, first), commit=held.commit)
    elif kind == "cut" and last > held.last_requested_index:
        index = held.last_requested_index + 1 + first % (last - held.last_requested_index)
        start = max(held.last_requested_start, index + 1 - second % 4)
        run.cut(name, start, index, keys=first % 4)
    elif kind == "install":
        start = last + 2 + first
        run.install(name, start, start - 1 + second % 3, [30] * (first % 3), keys=second % 3)
    elif kind == "settings":
        run.set_settings(name, Settings(held.settings.topic, first or None, second or None))
    elif kind == "drop":
        run.drop(name, aside=f"aside-{run.opened}-{run.disk.calls}-{partition}" if first % 2 else None)
    elif kind == "rebuild":
        run.rebuild(name, aside=f"again-{run.opened}-{run.disk.calls}-{partition}")


def script() -> list[Callable[[StoreRun], None]]:
    """30 rounds, with upkeep in between: at its own pace, so that entries wait, segments fill and files are cut."""
    ops: list[list[Op]] = [
        [Op("append", 0), Op("append", 1), Op("value", 0, 1)],
        [Op("append", 0, 1, 3), Op("append", 1, 2, 2)],
        [Op("append", 0, 2, 3), Op("vote", 1, 4)],
        [Op("append", 1, 3, 3), Op("append", 2)],
        [Op("append", 2, 1, 3), Op("replace", 0, 1, 2)],
        [Op("replace", 1, 2, 3), Op("append", 0, 3, 3)],
        [Op("cut", 0, 4, 1), Op("append", 1, 1, 2)],
        [Op("append", 0, 3, 3), Op("append", 2, 3, 3)],
        [Op("large", 0, 0, 1)],
        [Op("replace", 0, 3, 5), Op("settings", 1, 5, 6)],
        [Op("install", 1, 2, 2), Op("append", 0, 2, 2)],
        [Op("append", 1, 3, 3), Op("append", 2, 4, 3)],
        [Op("large", 2, 0, 3), Op("vote", 0, 2)],
        [Op("cut", 2, 6, 0), Op("cut", 0, 3, 0)],
        [Op("append", 2, 3, 3), Op("append", 0, 3, 3)],
        [Op("rebuild", 0), Op("append", 1, 3, 2)],
        [Op("append", 0, 3, 3), Op("drop", 2)],
        [Op("append", 2), Op("append", 0, 4, 3)],
        [Op("append", 2, 3, 3), Op("replace", 0, 2, 3)],
        [Op("large", 1, 0, 5), Op("value", 1, 9)],
        [Op("cut", 1, 7, 2), Op("append", 2, 3, 3)],
        [Op("append", 1, 3, 3), Op("append", 0, 3, 3)],
        [Op("replace", 2, 4, 5), Op("cut", 0, 2, 1)],
        [Op("drop", 2, 1), Op("append", 0, 3, 3)],
        [Op("install", 0, 1, 1), Op("append", 1, 3, 3)],
        [Op("append", 2), Op("append", 0, 3, 3)],
        [Op("append", 2, 3, 3), Op("cut", 1, 30, 0)],
        [Op("large", 2, 0, 2), Op("replace", 1, 1, 1)],
        [Op("append", 0, 3, 3), Op("append", 1, 3, 3), Op("append", 2, 3, 3)],
        [Op("vote", 0, 7), Op("value", 0, 2), Op("replace", 2, 1, 6)],
    ]
    steps: list[Callable[[StoreRun], None]] = []
    for number, round_ in enumerate(ops):
        steps.append(lambda run, round_=round_: write_round(run, round_))  # type: ignore[misc]
        if number % 3 == 2 or 16 < number < 22:
            steps.append(StoreRun.upkeep_once)
    steps += [StoreRun.write, StoreRun.settle]
    return steps


def write_round(run: StoreRun, ops: list[Op]) -> None:
    for op in ops:
        submit(run, op)
    run.write()
