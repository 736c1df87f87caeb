"""Two suites that run side by side never choose the same port."""

import errno
from pathlib import Path

from tests.port_reservations import with_reservations


def free(_port: int) -> int:
    return 0


def test_a_port_belongs_to_whoever_chose_it_first(tmp_path: Path) -> None:
    one, other = with_reservations(free, tmp_path), with_reservations(free, tmp_path)
    assert one(20_000) == 0
    assert other(20_000) == errno.EADDRINUSE
    assert one(20_000) == 0, "its own one, when a service starts again"
    assert other(20_001) == 0
    assert (one(80), other(80)) == (0, 0), "ports that are given, not chosen"


def test_a_port_that_is_bound_is_not_reserved(tmp_path: Path) -> None:
    busy = with_reservations(lambda _port: errno.EADDRINUSE, tmp_path)
    assert busy(20_000) == errno.EADDRINUSE
    assert with_reservations(free, tmp_path)(20_000) == 0
