"""A disk counts as slow only when it is so again and again."""

from broker.storage.slow_disk import SLOW_S, SlowDisk


def test_one_hiccup_is_not_slow() -> None:
    disk = SlowDisk()
    assert not disk.is_slow()
    for seconds in (1.0, 1.0, 1.0, 1.0):
        disk.observe(seconds)
    assert not disk.is_slow()
    disk.observe(SLOW_S / 2)
    assert not disk.is_slow()
    for _ in range(5):
        disk.observe(SLOW_S * 2)
    assert disk.is_slow()
