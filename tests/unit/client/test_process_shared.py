"""What clients of a process share: made once, closed with the last user, never taken over from the parent process."""

import os

from myqueue.process_shared import ProcessShared, process_id


class Shared:
    def __init__(self, key: str) -> None:
        self.key = key
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


def test_users_of_a_key_share_one_object_until_the_last_has_released_it() -> None:
    shares = ProcessShared(Shared, Shared.close)
    first, second, other = shares.acquire("a"), shares.acquire("a"), shares.acquire("b")
    assert first is second
    assert other is not first
    shares.release("a", first)
    assert not first.is_closed
    shares.release("a", second)
    assert first.is_closed
    assert not other.is_closed
    assert shares.acquire("a") is not first


def test_releasing_what_is_not_held_does_nothing() -> None:
    shares = ProcessShared(Shared, Shared.close)
    held = shares.acquire("a")
    shares.release("a", Shared("a"))
    assert not held.is_closed


def test_a_child_process_begins_with_nothing_shared() -> None:
    shares = ProcessShared(Shared, Shared.close)
    held = shares.acquire("a")
    assert process_id() == os.getpid()
    child = os.fork()
    if child == 0:
        is_good = process_id() == os.getpid() and shares.acquire("a") is not held
        os._exit(0 if is_good else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
