"""A stopped container has no name, and the question for it may take longer than nginx lets a check run."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from stack.local import free_port
from tests.integration.balanced_site import listens, running_nginx
from tests.integration.stand_in_manager import StandInManager
from tests.waiting import until

FOUND_S = 6.0  # a few checks, and the machine may be busy


class Named(StandInManager):
    @property
    def address(self) -> str:
        return f"{self.name}.test:{self.port}"

    def tell(self, epoch: int | None) -> None:
        self.behaviour.body = json.dumps({"active": epoch is not None, "epoch": epoch}).encode()


class Dns:
    """Every name is on the loopback; there is no answer about those that are away."""

    def __init__(self) -> None:
        self.away: set[str] = set()
        self.unanswered = 0
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
                last.sendto(b"", self._socket.getsockname())
            thread.join()
            self._socket.close()

    def _run(self) -> None:
        while True:
            data, sender = self._socket.recvfrom(512)
            if not data:
                return
            name = data[13 : 13 + data[12]].decode()
            if name in self.away:
                self.unanswered += 1
            else:
                answer = b"\xc0\x0c\0\1\0\1\0\0\0\1\0\4\x7f\0\0\1"
                self._socket.sendto(data[:2] + b"\x81\x80\0\1\0\1\0\0\0\0" + data[12:] + answer, sender)


@dataclass
class Names:
    dns: Dns
    internals: list[Named]
    folder: Path
    log: Path

    def has(self, flag: str) -> bool:
        return (self.folder / flag).exists()


@pytest.fixture
def names(tmp_path: Path) -> Iterator[Names]:
    """nginx with two write managers by name; the first one is active."""
    dns, internals = Dns(), [Named("write-manager-1"), Named("write-manager-2")]
    publics = [StandInManager("write-1"), StandInManager("write-2")]
    internals[0].tell(1)
    internals[1].tell(None)
    port = free_port()
    with ExitStack() as ending:
        ending.enter_context(dns.running())
        for server in [*internals, *publics]:
            server.start()
            ending.callback(server.stop)
        managers = list(zip(publics, internals, strict=True))
        balancer = ending.enter_context(
            running_nginx(tmp_path, port=port, write_managers=managers, resolver=dns.address)
        )
        until(lambda: listens(port))
        found = Names(dns, internals, balancer.upstream_files, tmp_path / "nginx.log")
        until(lambda: found.has("write") and not found.has("write_2"), within_s=FOUND_S, what="the first one is taken")
        yield found


def test_the_other_one_is_taken_while_the_name_of_the_first_one_is_away(names: Names) -> None:
    names.dns.away = {"write-manager-1"}
    until(lambda: names.dns.unanswered, within_s=FOUND_S, what="nginx asks for the name again")
    names.internals[1].tell(2)
    until(lambda: names.has("write") and names.has("write_2"), within_s=FOUND_S, what="the second one is taken")
    names.internals[1].tell(None)
    until(lambda: not names.has("write_2"), within_s=FOUND_S, what="the second one is a standby")
    assert "killing" not in names.log.read_text()


def test_one_whose_name_is_away_is_lost(names: Names) -> None:
    names.dns.away = {"write-manager-1"}
    until(lambda: not names.has("write"), within_s=FOUND_S, what="its checks fail")
