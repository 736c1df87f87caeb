"""The worker's schedule: order of a key, what may be committed, retries, revoked partitions; no threads, no clock."""

from collections import defaultdict

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from myqueue import Message
from myqueue.worker.task_schedule import HandLimits, MessageTask, Order, TaskSchedule

PARTITIONS = 2
KEYS = [b"a", b"b", None]
NO_LIMITS = HandLimits(messages=10**6, size=10**9, uncommitted=10**6)


def message(offset: int, key: bytes | None = None, partition: int = 0, value: bytes = b"v") -> Message:
    return Message("orders", value, key, partition, offset, 0)


def schedule(*messages: Message, order: Order = "key", limits: HandLimits = NO_LIMITS) -> TaskSchedule:
    made = TaskSchedule(order, limits)
    for each in messages:
        made.add(each)
    return made


def take_all(made: TaskSchedule, now: float = 0.0) -> list[MessageTask]:
    taken = []
    while (task := made.take(now)) is not None:
        taken.append(task)
    return taken


def offsets(tasks: list[MessageTask]) -> list[int]:
    return [task.message.offset for task in tasks]


def test_messages_of_one_key_run_one_after_the_other_and_others_beside_them() -> None:
    made = schedule(message(0, b"a"), message(1, b"a"), message(2, b"b"), message(3), message(4))
    first = take_all(made)
    assert offsets(first) == [0, 2, 3, 4]
    made.finish(first[0])
    assert offsets(take_all(made)) == [1]


def test_a_key_stands_for_itself_in_each_partition() -> None:
    made = schedule(message(0, b"a", partition=0), message(0, b"a", partition=1))
    assert len(take_all(made)) == 2


@pytest.mark.parametrize(("order", "together"), [("key", 3), ("partition", 1), ("none", 4)])
def test_the_order_that_was_chosen(order: Order, together: int) -> None:
    made = schedule(message(0, b"a"), message(1, b"a"), message(2), message(3), order=order)
    assert len(take_all(made)) == together


def test_the_lowest_offset_in_hand_is_what_may_be_committed() -> None:
    made = schedule(message(5), message(6), message(7))
    five, six, seven = take_all(made)
    made.finish(six)
    assert made.uncommitted() == {}
    made.finish(five)
    assert made.uncommitted() == {0: 7}
    made.committed({0: 7})
    assert made.uncommitted() == {}
    made.finish(seven)
    assert made.uncommitted() == {0: 8}


def test_a_retry_holds_up_its_key_only_and_comes_when_it_is_due() -> None:
    made = schedule(message(0, b"a"), message(1, b"a"), message(2, b"b"))
    zero, two = take_all(made)
    made.finish(two)
    assert made.retry(zero, at=10.0)
    assert made.next_retry() == 10.0
    assert take_all(made, now=9.9) == []
    assert take_all(made, now=10.0) == [zero]
    assert made.uncommitted() == {}


def test_what_was_read_again_replaces_what_was_in_hand() -> None:
    """As after a seek back: the messages between are delivered again, too."""
    made = schedule(message(5), message(6))
    five, six = take_all(made)
    made.add(message(5))
    assert not made.finish(five)
    assert not made.finish(six)
    assert made.uncommitted() == {}
    [again] = take_all(made)
    made.finish(again)
    assert made.uncommitted() == {0: 6}


def test_a_gap_in_the_offsets_is_passed() -> None:
    """As when retention deletes messages before they are read."""
    made = schedule(message(5), message(9))
    for task in take_all(made):
        made.finish(task)
    assert made.uncommitted() == {0: 10}


def test_the_result_of_a_revoked_partition_does_not_count() -> None:
    made = schedule(message(0, b"a"), message(1, b"a"), message(2, b"b"), message(0, partition=1))
    first, other, elsewhere = take_all(made)
    assert made.is_busy([0], until=0.0)
    made.revoke(0)
    assert not made.is_busy([0], until=0.0)
    assert made.running == 3
    assert not made.finish(first)
    assert not made.retry(other, at=1.0)
    assert take_all(made, now=2.0) == []
    assert made.finish(elsewhere)
    assert made.uncommitted() == {1: 1}
    assert (made.running, made.in_hand) == (0, 0)


def test_a_partition_that_is_about_to_go_finishes_what_lies_before_the_last_that_has_begun() -> None:
    made = schedule(message(0, b"a"), message(1, b"a"), message(2, b"b"), message(3, b"b"), message(4, b"a"))
    first, third = take_all(made)
    made.finish(third)
    assert offsets(list(made._ready)) == [3]
    made.begin_revoke([0, 7])
    assert take_all(made) == [], "what has not begun is left to the next one"
    made.finish(first)
    assert made.uncommitted() == {0: 1}
    [second] = take_all(made)
    assert second.message.offset == 1
    assert made.is_busy([0], until=0.0)
    made.retry(second, at=5.0)
    assert not made.is_busy([0], until=4.0), "it is not waited for"
    assert made.is_busy([0], until=5.0)
    [second] = take_all(made, now=5.0)
    made.finish(second)
    assert made.uncommitted() == {0: 3}
    assert (made.in_hand, made.running, made.is_busy([0], until=9.0)) == (0, 0, False)


def test_a_commit_that_may_have_failed_is_repeated() -> None:
    made = schedule(message(5), message(6))
    five, _ = take_all(made)
    made.finish(five)
    made.committed({0: 6})
    assert made.uncommitted() == {}
    made.recommit()
    assert made.uncommitted() == {0: 6}


def test_a_key_waits_for_its_message_that_runs_from_an_earlier_assignment() -> None:
    made = schedule(message(0, b"a"))
    [running] = take_all(made)
    made.revoke(0)
    made.add(message(0, b"a"))
    made.add(message(1, b"b"))
    assert offsets(take_all(made)) == [1]
    made.finish(running)
    [again] = take_all(made)
    assert again is not running
    assert again.message.offset == 0


def test_partitions_have_equal_shares() -> None:
    limits = HandLimits(messages=4, size=10**9, uncommitted=100)
    made = schedule(message(0), message(1), limits=limits)
    assert made.find_full(assigned=1) == set()
    assert made.find_full(assigned=2) == {0}
    assert made.find_full(assigned=1) == {0}, "half of its share is not free yet"
    for task in take_all(made)[:1]:
        made.finish(task)
    assert made.find_full(assigned=1) == set()


def test_large_messages_fill_a_partition_but_one_is_always_read() -> None:
    limits = HandLimits(messages=100, size=1000, uncommitted=100)
    made = schedule(limits=limits)
    assert made.find_full(assigned=50) == set()
    made.add(message(0, value=bytes(2000)))
    assert made.find_full(assigned=1) == {0}


def test_a_partition_that_is_far_ahead_of_its_oldest_message_waits() -> None:
    limits = HandLimits(messages=100, size=10**9, uncommitted=3)
    made = schedule(message(0, b"a"), message(1), message(2), limits=limits)
    stuck, *others = take_all(made)
    for task in others:
        made.finish(task)
    assert made.find_full(assigned=1) == {0}
    made.finish(stuck)
    assert made.find_full(assigned=1) == set()


class AnySchedule(RuleBasedStateMachine):
    """A log of two partitions, read, handled, failed, committed, revoked and read again in any order."""

    @initialize(order=st.sampled_from(["key", "partition", "none"]))
    def begin(self, order: Order) -> None:
        self.order = order
        self.schedule = TaskSchedule(order, NO_LIMITS)
        self.now = 0.0
        self.log: dict[int, list[Message]] = {partition: [] for partition in range(PARTITIONS)}
        self.position = dict.fromkeys(self.log, 0)
        self.cursor = dict.fromkeys(self.log, 0)
        self.begun = dict.fromkeys(self.log, 0)  # behind the last one that has begun since the partition came
        self.done: dict[int, set[int]] = defaultdict(set)  # ever
        self.running: list[MessageTask] = []
        self.due: dict[MessageTask, float] = {}  # of retries

    def lane(self, task: MessageTask) -> object:
        each = task.message
        if self.order == "partition":
            return each.partition
        return (each.partition, each.offset if self.order == "none" or each.key is None else each.key)

    @rule(partition=st.integers(0, PARTITIONS - 1), key=st.sampled_from(KEYS))
    def read(self, partition: int, key: bytes | None) -> None:
        log, position = self.log[partition], self.position[partition]
        if position == len(log):
            log.append(message(len(log), key, partition))
        self.schedule.add(log[position])
        self.position[partition] += 1

    @rule(seconds=st.floats(0.0, 2.0))
    def take(self, seconds: float) -> None:
        self.now += seconds
        task = self.schedule.take(self.now)
        if task is None:
            return
        assert not task.dropped
        assert self.due.pop(task, 0.0) <= self.now, "a retry came early"
        assert self.lane(task) not in [self.lane(other) for other in self.running], "two of a lane run at a time"
        before = self.log[task.message.partition][: task.message.offset]
        same = [each for each in before if self.lane(MessageTask(each, task.lane)) == self.lane(task)]
        assert all(each.offset in self.done[each.partition] for each in same), "overtook one of its lane"
        self.running.append(task)
        self.begun[task.message.partition] = max(self.begun[task.message.partition], task.message.offset + 1)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        task = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        if self.schedule.finish(task):
            self.done[task.message.partition].add(task.message.offset)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), pause=st.floats(0.0, 3.0))
    def fail(self, data: st.DataObject, pause: float) -> None:
        task = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        if self.schedule.retry(task, self.now + pause):
            self.due[task] = self.now + pause

    @rule()
    def commit(self) -> None:
        offsets = self.schedule.uncommitted()
        for partition, offset in offsets.items():
            assert offset > self.cursor[partition]
            self.cursor[partition] = offset
        self.schedule.committed(offsets)

    @rule(partition=st.integers(0, PARTITIONS - 1), told=st.booleans())
    def move(self, partition: int, told: bool) -> None:
        """The partition goes away and comes back, or was sought: it is read from its cursor on again."""
        if told or self.position[partition] == self.cursor[partition]:
            self.schedule.revoke(partition)
        self.position[partition] = self.begun[partition] = self.cursor[partition]
        if not told and self.cursor[partition] < len(self.log[partition]):
            self.read(partition, None)

    @rule(partition=st.integers(0, PARTITIONS - 1))
    def announce_move(self, partition: int) -> None:
        """What has not begun is dropped; what has, and all before it, is still to be done."""
        self.schedule.begin_revoke([partition])
        if self.position[partition] > self.begun[partition]:
            self.position[partition] = self.begun[partition]

    @invariant()
    def a_commit_never_passes_what_is_not_done(self) -> None:
        if not hasattr(self, "schedule"):
            return
        for partition, offset in (self.cursor | self.schedule.uncommitted()).items():
            assert set(range(offset)) <= self.done[partition]

    def teardown(self) -> None:
        """Nothing is forgotten: whatever was read is done after each task has run, and can be committed."""
        if not hasattr(self, "schedule"):
            return
        while (task := self.running.pop() if self.running else self.schedule.take(self.now + 100.0)) is not None:
            if self.schedule.finish(task):
                self.done[task.message.partition].add(task.message.offset)
        self.commit()
        assert self.cursor == self.position
        assert (self.schedule.in_hand, self.schedule.running) == (0, 0)


AnySchedule.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAnySchedule = AnySchedule.TestCase
