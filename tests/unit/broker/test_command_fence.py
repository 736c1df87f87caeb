"""Which commands of write managers a broker carries out, and what a delete may be decided on."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.command_fence import CommandFence, KnownReplica, delete_refusal, epoch_of
from broker.raft.configuration import NO_MEMBERS, GroupConfiguration, MemberId
from myqueue.protocol.errors import InvalidRequest, StaleEpoch, Unavailable
from tests.waiting import until

ME = MemberId(1, 7)
OTHER = MemberId(2, 7)


class Disk:
    """What a broker stored, in order; the first `failures` tries fail."""

    def __init__(self, failures: int = 0) -> None:
        self.epochs: list[int] = []
        self._failures = failures

    def store(self, epoch: int) -> None:
        if self._failures:
            self._failures -= 1
            raise Unavailable("the broker's disk is slow", outcome="not_written")
        self.epochs.append(epoch)


def stale(fence: CommandFence, epoch: int) -> int:
    """The epoch that the refusal names."""
    with pytest.raises(StaleEpoch) as refused, fence.command(epoch):
        raise AssertionError("it was carried out")
    assert (refused.value.http_status, refused.value.error_code, refused.value.outcome) == (409, 40914, "not_written")
    named: int = refused.value.details["epoch"]
    return named


@given(st.integers(0, 3), st.lists(st.integers(0, 5)))
def test_the_highest_epoch_is_stored_before_a_command_and_older_ones_are_refused(
    stored: int, epochs: list[int]
) -> None:
    disk = Disk()
    fence = CommandFence(stored, disk.store)
    highest = stored
    for epoch in epochs:
        if epoch < highest:
            assert stale(fence, epoch) == highest
            continue
        with fence.command(epoch):
            assert [stored, *disk.epochs][-1] == epoch
        highest = epoch
    assert disk.epochs == sorted(set(disk.epochs))  # once each
    assert fence.epoch == highest


def test_a_command_of_an_older_release_counts_as_epoch_0() -> None:
    assert epoch_of(None) == 0
    assert epoch_of("17") == 17
    for header in ("", "-1", "1.0", "1e3", " 1", "٣", str(1 << 63), "9" * 30):
        with pytest.raises(InvalidRequest, match="X-Myqueue-Epoch"):
            epoch_of(header)


def test_nothing_is_carried_out_under_an_epoch_that_is_not_on_disk() -> None:
    disk = Disk(failures=2)
    fence = CommandFence(3, disk.store)
    for _ in range(2):
        with pytest.raises(Unavailable) as refused, fence.command(5):
            raise AssertionError("it was carried out")
        assert refused.value.outcome == "not_written"
        assert stale(fence, 3) == 5  # it has been heard of
    with fence.command(5):
        assert disk.epochs == [5]


def test_a_write_manager_that_is_heard_of_fences_older_ones_also_while_the_disk_is_slow() -> None:
    disk = Disk(failures=1)
    fence = CommandFence(3, disk.store)
    fence.hear_of(5)
    assert (fence.epoch, disk.epochs) == (5, [])
    assert stale(fence, 4) == 5
    with pytest.raises(StaleEpoch):
        fence.hear_of(4)
    fence.hear_of(5)
    assert disk.epochs == [5]


def test_a_newer_command_waits_for_older_ones_and_keeps_others_out() -> None:
    disk = Disk()
    fence = CommandFence(1, disk.store, wait_s=20)
    order: list[str] = []
    may_end, runs = threading.Event(), threading.Event()

    def older() -> None:
        with fence.command(1):
            runs.set()
            assert may_end.wait(20)
            order.append("older")

    def newer() -> None:
        with fence.command(2):
            order.append("newer")

    with ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(older)]
        assert runs.wait(20)
        calls.append(pool.submit(newer))
        until(lambda: is_refused(fence, 1), within_s=20, what="the newer epoch is known")
        assert not disk.epochs
        assert not order
        may_end.set()
        for call in calls:
            call.result(20)
    assert order == ["older", "newer"]
    assert disk.epochs == [2]


def is_refused(fence: CommandFence, epoch: int) -> bool:
    try:
        with fence.command(epoch):
            return False
    except StaleEpoch:
        return True


def test_a_newer_command_gives_up_when_an_older_one_does_not_end() -> None:
    fence = CommandFence(1, Disk().store, wait_s=0.0)
    with fence.command(1):
        with pytest.raises(Unavailable, match="earlier write manager") as refused, fence.command(2):
            raise AssertionError("it was carried out")
        assert refused.value.outcome == "not_written"
    with fence.command(2):
        assert fence.epoch == 2


def test_commands_of_one_epoch_run_beside_each_other() -> None:
    fence = CommandFence(0, Disk().store)
    both = threading.Barrier(2, timeout=20)

    def command() -> None:
        with fence.command(4):
            both.wait()

    run_all([command, command])


def test_no_older_command_happens_after_a_newer_one_was_answered() -> None:
    """Threads with random epochs: by the order in which commands began and ended."""
    fence = CommandFence(0, Disk().store, wait_s=20)
    events: list[tuple[str, int]] = []

    def send(first: int) -> Callable[[], None]:
        def commands() -> None:
            for n in range(200):
                epoch = first + n // 10
                try:
                    with fence.command(epoch):
                        events.append(("carried out", epoch))
                    events.append(("answered", epoch))
                except StaleEpoch:
                    continue

        return commands

    run_all([send(first) for first in (0, 1, 3, 7)])
    answered = 0
    for what, epoch in events:
        assert epoch >= answered, (what, epoch, answered)
        answered = max(answered, epoch) if what == "answered" else answered
    assert answered == 26


def run_all(works: list[Callable[[], None]]) -> None:
    with ThreadPoolExecutor(len(works)) as pool:
        for call in [pool.submit(work) for work in works]:
            call.result(60)


@pytest.mark.parametrize(
    ("known", "newest_index", "newest", "refusal"),
    [
        (KnownReplica(7, 4), 4, GroupConfiguration((ME, OTHER)), None),  # a deleted topic, as the replica reported it
        (KnownReplica(7, 4), 5, GroupConfiguration((ME, OTHER)), "newer than 4"),  # it was added again
        (KnownReplica(7, 4), 5, GroupConfiguration((OTHER,), (ME,)), "newer than 4"),  # as a learner
        (KnownReplica(7, 4), 5, GroupConfiguration((OTHER,)), None),  # removed again
        (KnownReplica(7, 9), 5, GroupConfiguration((ME, OTHER)), None),  # removed, and it never heard of that
        (KnownReplica(8, 9), 5, GroupConfiguration((OTHER,)), "another member"),
        (KnownReplica(7, 0), 5, GroupConfiguration((MemberId(1, 6), OTHER)), None),  # another replica of this broker
        (KnownReplica(7, 0), 0, NO_MEMBERS, None),
        (KnownReplica(6, 0), 0, NO_MEMBERS, "another member"),
    ],
)
def test_a_delete_is_refused_when_the_replica_knows_more(
    known: KnownReplica, newest_index: int, newest: GroupConfiguration, refusal: str | None
) -> None:
    found = delete_refusal(ME, known, newest_index, newest)
    assert found is None if refusal is None else found is not None and refusal in found


def test_a_command_is_not_begun_when_a_higher_epoch_is_heard_of_while_its_own_is_stored() -> None:
    """Nobody waits for the disk to hear of it."""
    disk, storing = threading.Event(), threading.Event()

    def store(_: int) -> None:
        storing.set()
        assert disk.wait(10)

    fence = CommandFence(3, store)
    with ThreadPoolExecutor(1) as commands:
        refused = commands.submit(stale, fence, 4)
        assert storing.wait(10)
        fence.hear_of(5)
        assert fence.epoch == 5
        disk.set()
        assert refused.result(10) == 5
    with fence.command(5):
        assert fence.epoch == 5
