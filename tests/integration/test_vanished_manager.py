"""A read manager vanishes with its address, as a container that dies: a long poll that waits there is answered by
another one, because nginx's probes get no answer."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests
import yaml

from stack.config import CHECKOUT
from tests import required
from tests.integration.balanced_site import listens, running_nginx
from tests.integration.stand_in_manager import StandInManager
from tests.network_namespaces import Machine, NoNamespaces, machines
from tests.waiting import until

PORT = 8080
LONG_POLL_S = 30.0
NOTICED_S = 5.0
NOISE_S = 5.0  # of a busy machine, beside what the probes take


def keepalive_settings() -> dict[str, str]:
    """As the container of nginx has them."""
    sysctls = yaml.safe_load((CHECKOUT / "docker-compose.yml").read_text())["services"]["nginx"]["sysctls"]
    return {name: value for name, value in sysctls.items() if name.startswith("net.ipv4.tcp_keepalive_")}


@dataclass
class Network:
    nginx: Machine
    machines: dict[str, Machine]
    managers: dict[str, StandInManager]

    def poll(self) -> str:
        """The name of the manager that answers; something else while nginx knows of none."""
        url = f"http://127.0.0.1:{PORT}/v1/consumers/1/poll"
        return self.nginx.run(lambda: requests.post(url, json={"wait_ms": 30_000}, timeout=60)).text

    def ready_managers(self) -> set[str]:
        return {self.poll() for _ in self.managers}


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    try:
        with machines(3) as (nginx, *others):
            nginx.set_kernel(keepalive_settings())
            by_name = dict(zip(("read-1", "read-2"), others, strict=True))
            managers = {name: StandInManager(name, machine.address) for name, machine in by_name.items()}
            write = StandInManager("write")
            rows = [{"name": name, "endpoint": f"http://{one.address}"} for name, one in managers.items()]
            write.behaviour.body = json.dumps({"managers": rows, "brokers": [], "active": True, "epoch": 1}).encode()
            nginx.run(write.start)
            for name, manager in managers.items():
                by_name[name].run(manager.start)
            try:
                # None is declared, all are followed, as in containers.
                with running_nginx(tmp_path, port=PORT, write_managers=[(write, write)], prefix=nginx.command()):
                    until(lambda: nginx.run(lambda: listens(PORT)), within_s=10, what="nginx listens")
                    yield Network(nginx, by_name, managers)
            finally:
                for server in (write, *managers.values()):
                    server.stop()
    except NoNamespaces as reason:
        required.skip(f"network namespaces cannot be made here: {reason}")


def test_the_probes_take_no_longer_than_promised() -> None:
    found = {name.rpartition("_")[2]: int(value) for name, value in keepalive_settings().items()}
    assert found["time"] + found["intvl"] * found["probes"] <= NOTICED_S


def test_a_long_poll_at_a_manager_that_vanishes_is_answered_by_another(network: Network) -> None:
    until(lambda: network.ready_managers() == set(network.managers), within_s=15, what="both managers get polls")
    for manager in network.managers.values():
        manager.received.clear()
    vanishing = network.managers["read-1"]
    vanishing.behaviour.answer_delay_s = LONG_POLL_S
    with ThreadPoolExecutor(2) as pool:
        polls = [pool.submit(network.poll) for _ in network.managers]
        until(lambda: vanishing.received, within_s=5, what="a poll waits at the one that is to vanish")
        network.machines["read-1"].vanish()
        vanished_s = time.monotonic()
        assert [poll.result() for poll in polls] == ["read-2"] * 2
        assert time.monotonic() - vanished_s < NOTICED_S + NOISE_S
    assert network.poll() == "read-2"
