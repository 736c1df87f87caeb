"""A grant that was shown before is believed only as long as it is valid."""

from uuid import UUID

import pytest

from broker.data_plane_access import GrantCache
from myqueue.protocol.errors import Forbidden, GrantInvalid
from myqueue.protocol.grant import READ, WRITE, issue

SECRET = "a secret of the tests"
TOPIC = UUID(int=7)


class Clock:
    now_ms = 1_000

    def __call__(self) -> int:
        return self.now_ms


def test_until_it_expires() -> None:
    clock = Clock()
    grants = GrantCache(SECRET, clock)
    text = issue(SECRET, TOPIC, READ, 2_000)
    for _ in range(2):
        grants.check(text, READ, TOPIC, 3)
        with pytest.raises(Forbidden):
            grants.check(text, WRITE, TOPIC, 3)
        with pytest.raises(Forbidden):
            grants.check(text, READ, UUID(int=8), 3)
    clock.now_ms = 2_000
    for _ in range(2):
        with pytest.raises(GrantInvalid):
            grants.check(text, READ, TOPIC, 3)


@pytest.mark.parametrize("text", [None, "", "x", "ä" * 10, "A" * 5000, issue("another secret 123", TOPIC, READ, 9_999)])
def test_what_is_no_grant(text: str | None) -> None:
    with pytest.raises(GrantInvalid):
        GrantCache(SECRET, Clock()).check(text, READ, TOPIC, 0)


def test_memory_is_bounded() -> None:
    grants = GrantCache(SECRET, Clock())
    for number in range(5_000):
        grants.check(issue(SECRET, TOPIC, READ, 2_000 + number), READ, TOPIC, 0)
    assert len(grants._verified) <= 4096
