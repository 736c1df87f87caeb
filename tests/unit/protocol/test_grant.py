"""Grants: what was issued verifies, everything else is refused."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from myqueue.protocol import grant
from myqueue.protocol.errors import Forbidden, GrantInvalid

TOPIC = UUID(int=17)
OTHER = UUID(int=18)
NOW = 1_700_000_000_000


def test_what_was_issued_verifies_until_it_expires() -> None:
    text = grant.issue("secret", TOPIC, grant.READ | grant.WRITE, NOW + 1)
    verified = grant.verify("secret", text, NOW)
    assert (verified.topic_id, verified.rights, verified.expires_ms) == (TOPIC, 3, NOW + 1)
    with pytest.raises(GrantInvalid):
        grant.verify("secret", text, NOW + 1)


def test_it_covers_its_topic_partitions_and_rights_only() -> None:
    verified = grant.verify("secret", grant.issue("secret", TOPIC, grant.READ, NOW + 1, (2, 4)), NOW)
    verified.check(grant.READ, TOPIC, 2)
    verified.check(grant.READ, TOPIC, 4)
    for right, topic, partition in [(grant.WRITE, TOPIC, 3), (grant.READ, OTHER, 3), (grant.READ, TOPIC, 5)]:
        with pytest.raises(Forbidden):
            verified.check(right, topic, partition)


def test_another_secret_does_not_verify() -> None:
    with pytest.raises(GrantInvalid):
        grant.verify("secret", grant.issue("another", TOPIC, grant.READ, NOW + 1), NOW)


@given(st.integers(min_value=0), st.sampled_from("ABCxyz019-_"))
def test_a_changed_grant_does_not_verify(place: int, character: str) -> None:
    text = grant.issue("secret", TOPIC, grant.READ, NOW + 1)
    place %= len(text) - 1  # the last character has bits that mean nothing
    changed = text[:place] + character + text[place + 1 :]
    if changed != text:
        with pytest.raises(GrantInvalid):
            grant.verify("secret", changed, NOW)


@given(st.text())
def test_any_text_is_refused_in_order(text: str) -> None:
    with pytest.raises(GrantInvalid):
        grant.verify("secret", text, NOW)
