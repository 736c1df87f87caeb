"""A worker whose Java has hung up ends quietly; any other error is still one."""

import socket

import pytest

from spark import worker_daemon


@pytest.mark.parametrize("error", [BrokenPipeError(), ConnectionResetError()])
def test_nobody_is_left_to_tell(monkeypatch: pytest.MonkeyPatch, error: OSError) -> None:
    def hung_up(sock: socket.socket, authenticated: bool) -> int:
        raise error

    monkeypatch.setattr(worker_daemon, "_worker", hung_up)
    with socket.socket() as sock:
        assert worker_daemon.worker(sock, True) == 1


def test_other_errors_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(sock: socket.socket, authenticated: bool) -> int:
        raise OSError("no space left")

    monkeypatch.setattr(worker_daemon, "_worker", broken)
    with socket.socket() as sock, pytest.raises(OSError, match="no space"):
        worker_daemon.worker(sock, True)
