"""Querying the roles of the servers."""

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
from pydantic import SecretStr

from db import servers
from db.servers import ServerRoles
from db.settings import DatabaseAddress
from tests.waiting import let_pass

FRESH_S = 0.5


@pytest.mark.parametrize("stale_s", [60.0, FRESH_S])
def test_while_one_thread_queries_the_others_get_the_known_roles_unless_they_are_stale(
    stale_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "ROLES_FRESH_S", FRESH_S)
    monkeypatch.setattr(servers, "ROLES_STALE_S", stale_s)
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor() as pool:
        host = f"127.0.0.1:{silent.getsockname()[1]}"
        address = DatabaseAddress(hosts=[host], user="u", password=SecretStr("p"), name="n")
        server_roles = ServerRoles(address, "test")
        before = pool.submit(server_roles.roles)
        silent.accept()[0].close()
        assert before.result() == [None]
        let_pass(FRESH_S)
        asking = pool.submit(server_roles.roles)
        connection = silent.accept()[0]  # the query gets no answer
        other = pool.submit(server_roles.roles)
        if stale_s > FRESH_S:
            assert other.result() is before.result()
        connection.close()
        assert asking.result() is not before.result()
        assert other.result() is (before if stale_s > FRESH_S else asking).result()
