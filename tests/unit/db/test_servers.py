"""Asking the servers of the trio what they are."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from pydantic import SecretStr

from db import servers
from db.engine import Address
from db.servers import Servers

KEPT_S = 0.5


@pytest.mark.parametrize("stale_s", [60.0, KEPT_S])
def test_while_one_asks_others_are_told_what_is_known_unless_it_is_too_old(
    stale_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "KEPT_S", KEPT_S)
    monkeypatch.setattr(servers, "STALE_S", stale_s)
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor() as pool:
        address = Address(hosts=[f"127.0.0.1:{silent.getsockname()[1]}"], user="u", password=SecretStr("p"), name="n")
        told = Servers(address, "test")
        before = pool.submit(told.roles)
        silent.accept()[0].close()
        assert before.result() == [None]
        time.sleep(KEPT_S)
        asking = pool.submit(told.roles)
        connection = silent.accept()[0]  # it asks, and there is no answer
        other = pool.submit(told.roles)
        if stale_s > KEPT_S:
            assert other.result() is before.result()
        connection.close()
        assert asking.result() is not before.result()
        assert other.result() is (before if stale_s > KEPT_S else asking).result()
