"""Liveness: who died, by the clock of the one who listens and only while it listened."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.settings import load
from write_manager.config import WriteManagerSettings
from write_manager.liveness import STALL_SHARE, check_liveness

TTL_S = 5.0
members = st.dictionaries(st.integers(1, 9), st.floats(0, 100), max_size=9)


@given(members, st.floats(100, 200), st.floats(0.1, 50), st.floats(0, 100))
def test_silence_kills_unless_the_judge_was_away(
    heard: dict[int, float], now_s: float, ttl_s: float, gap_s: float
) -> None:
    liveness = check_liveness(heard, now_s, now_s - gap_s, ttl_s)
    assert set(liveness.expired) | set(liveness.last_heartbeats_s) == set(heard)
    assert not set(liveness.expired) & set(liveness.last_heartbeats_s)
    if now_s - (now_s - gap_s) > ttl_s * STALL_SHARE:
        assert liveness.expired == ()
        assert set(liveness.last_heartbeats_s.values()) <= {now_s}
    else:
        assert set(liveness.expired) == {member for member, last_s in heard.items() if now_s - last_s > ttl_s}
        assert all(liveness.last_heartbeats_s[member] == heard[member] for member in liveness.last_heartbeats_s)


@given(st.lists(st.tuples(st.floats(0.1, 60), st.floats(0, 1)), max_size=50))
def test_who_sends_heartbeats_outlives_every_pause_and_who_does_not_dies(pauses: list[tuple[float, float]]) -> None:
    """Sweeps come every second or after a pause. Member 1 is heard of soon after each of them, member 2 never."""
    now_s, listened_s = 0.0, 0.0
    heard: dict[int, float] = {1: 0.0, 2: 0.0}
    for pause_s, delay_s in pauses:
        last_s, now_s = now_s, now_s + pause_s
        liveness = check_liveness(heard, now_s, last_s, TTL_S)
        heard = liveness.last_heartbeats_s
        assert 1 in heard
        listened_s = 0.0 if pause_s > TTL_S * STALL_SHARE else listened_s + pause_s
        if 2 not in heard:
            assert listened_s > 0, "nobody dies of a pause"
            return
        assert listened_s <= TTL_S * (1 + STALL_SHARE), "it was missed for a whole time to live without a pause"
        heard[1] = now_s + delay_s


def test_a_broker_is_inactive_after_five_seconds() -> None:
    heard = {1: 10.0, 2: 14.9}
    assert check_liveness(heard, 15.0, 14.0, TTL_S).expired == ()
    assert check_liveness(heard, 15.1, 14.1, TTL_S).expired == (1,)


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (("--broker-ttl-s", "5", "--heartbeat-interval-s", "2.5"), "--heartbeat-interval-s"),
        (("--broker-ttl-s", "1.5"), "--heartbeat-interval-s"),
        (("--broker-ttl-s", "0"), "--broker-ttl-s"),
        (("--name", "schreiber-ö"), "--name"),  # PostgreSQL would change it in the names of sessions
        (("--name", "write manager"), "--name"),
    ],
)
def test_the_heartbeat_interval_is_checked_against_the_time_to_live_with_all_other_settings(
    flags: tuple[str, ...], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--database-hosts", "127.0.0.1:1", "--cluster-secret", "s" * 16)
    load(WriteManagerSettings, "write_manager", "", [*given, "--broker-ttl-s", "5", "--heartbeat-interval-s", "2.4"])
    with pytest.raises(SystemExit) as stopped:
        load(WriteManagerSettings, "write_manager", "", [*given, *flags, "--port", "0"])
    assert stopped.value.code == 2
    ports, interval = sorted(capsys.readouterr().err.splitlines()[1:], key=lambda line: problem in line)
    assert ports.strip().startswith("--port ")
    assert interval.strip().startswith(f"{problem} ")
