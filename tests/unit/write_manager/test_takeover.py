"""When a standby takes over: never from a holder that renews, always from one that is silent, at once where it may."""

import math

from hypothesis import given
from hypothesis import strategies as st

from db.manager_lease import LeaseLook, LeaseRecord
from write_manager.takeover import (
    VERIFIED_SHARE,
    WatchedLease,
    counts_as_sent_s,
    lease_grace_s,
    silence_to_take_over,
    watch,
)

TAKEOVER_S = 3.0
HELD = LeaseRecord("other", 7, 100, released=False)


def silence(
    watched: WatchedLease, look: LeaseLook, sent_s: float, name: str = "me", takeover_s: float = TAKEOVER_S
) -> float | None:
    return silence_to_take_over(watched, look, name=name, sent_s=sent_s, takeover_s=takeover_s)


def first_look(record: LeaseRecord, *, has_standby: bool = True, namesake_lives: bool = False) -> float | None:
    return silence(WatchedLease(record, 10.0), LeaseLook(record, has_standby, namesake_lives), 9.9)


def test_a_released_lease_is_taken_at_once() -> None:
    assert first_look(LeaseRecord("other", 7, 100, released=True)) == math.inf
    assert first_look(LeaseRecord("", 0, 0, released=True)) == math.inf


def test_a_lease_of_another_one_is_watched_first() -> None:
    assert first_look(HELD) is None


def test_a_restarted_process_has_its_own_lease_again_at_once() -> None:
    own = LeaseRecord("me", 7, 100, released=False)
    assert first_look(own) == 0.0
    assert first_look(own, namesake_lives=True) is None, "two with one name would fence each other for ever"


def test_nothing_is_taken_from_a_server_that_no_standby_follows() -> None:
    """It may be a primary that was replaced, and resumed: its row stands still for ever."""
    assert first_look(LeaseRecord("other", 7, 100, released=True), has_standby=False) is None
    assert first_look(LeaseRecord("me", 7, 100, released=False), has_standby=False) is None
    silent = WatchedLease(HELD, 10.0)
    assert silence(silent, LeaseLook(HELD, has_standby=True, namesake_lives=False), 60.0) == 50.0
    assert silence(silent, LeaseLook(HELD, has_standby=False, namesake_lives=False), 60.0) is None


def test_a_look_that_failed_starts_anew() -> None:
    watched = watch(None, HELD, 10.0)
    assert watch(watched, HELD, 12.9) is watched
    assert watch(None, HELD, 12.9).since_s == 12.9


# Times in milliseconds.
RENEWALS = st.lists(st.integers(1, 2900), min_size=1, max_size=30)
LOOKS = st.lists(st.tuples(st.integers(1, 400), st.integers(0, 400)), min_size=1, max_size=60)  # pause, round trip


@given(RENEWALS, LOOKS, st.data())
def test_no_holder_that_renews_in_time_is_replaced(
    gaps: list[int], looks: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Whenever within a round trip the server reads the row."""
    renewed_at = [sum(gaps[: number + 1]) for number in range(len(gaps))]
    watched, now = None, 0
    for pause, round_trip in looks:
        sent = now + pause
        now = sent + round_trip
        if now > renewed_at[-1]:
            return
        read_at = data.draw(st.integers(sent, now))
        record = LeaseRecord("other", 7, sum(at <= read_at for at in renewed_at), released=False)
        watched = watch(watched, record, now / 1000)
        assert silence(watched, LeaseLook(record, has_standby=True, namesake_lives=False), sent / 1000) is None


@given(LOOKS)
def test_a_silent_holder_is_replaced(looks: list[tuple[int, int]]) -> None:
    watched, now, waited_from = None, 0, None
    for pause, round_trip in looks:
        sent = now + pause
        now = sent + round_trip
        watched = watch(watched, HELD, now / 1000)
        waited_from = now if waited_from is None else waited_from
        silent_s = silence(watched, LeaseLook(HELD, has_standby=True, namesake_lives=False), sent / 1000)
        assert (silent_s is not None) == (sent - waited_from >= 3000)


@given(st.floats(0.1, 60), st.floats(0.1, 60), st.floats(0, 100), st.floats(0, 1), st.floats(0, 10), st.floats(0, 10))
def test_no_lease_of_the_predecessor_outlives_the_grace(
    lease_s: float, takeover_s: float, silent_s: float, share: float, activation_s: float, late_s: float
) -> None:
    """The predecessor answers from memory for as long as it may after its last renewal."""
    taken_s = 1000.0
    last_renewal_s = taken_s - silent_s - late_s
    last_answer_s = last_renewal_s + share * VERIFIED_SHARE * takeover_s
    given_again_s = taken_s + activation_s + lease_grace_s(silent_s, lease_s=lease_s, takeover_s=takeover_s)
    assert last_answer_s + lease_s <= given_again_s + 1e-6
    assert lease_grace_s(math.inf, lease_s=lease_s, takeover_s=takeover_s) == lease_s


@given(st.floats(0.1, 60), st.floats(0, 100), st.floats(0, 100), st.floats(0, 100))
def test_a_replaced_primary_verifies_nobody_when_a_successor_is_active(
    takeover_s: float, late_s: float, promoted_after_s: float, renewed_after_s: float
) -> None:
    """It takes renewals for ever; the standby that was promoted had got one of them before."""
    confirmed_s = 1000.0  # sent; a standby got it later
    promoted_s = confirmed_s + late_s + promoted_after_s
    taken_s = promoted_s + takeover_s  # a successor watches the row on the new primary first
    verified_for_s = VERIFIED_SHARE * takeover_s
    sent_s = counts_as_sent_s(confirmed_s + renewed_after_s, confirmed_s, verified_for_s=verified_for_s)
    assert sent_s <= confirmed_s + renewed_after_s
    assert sent_s + verified_for_s <= taken_s + 1e-6
