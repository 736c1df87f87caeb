"""A disk counts as slow only when it is so again and again."""

from broker.storage.pace import SLOW_S, Pace


def test_one_hiccup_is_not_slow() -> None:
    pace = Pace()
    assert not pace.is_slow()
    for seconds in (1.0, 1.0, 1.0, 1.0):
        pace.observe(seconds)
    assert not pace.is_slow()
    pace.observe(SLOW_S / 2)
    assert not pace.is_slow()
    for _ in range(5):
        pace.observe(SLOW_S * 2)
    assert pace.is_slow()
