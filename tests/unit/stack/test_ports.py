"""Ports are kept while they are free, and the holder of a busy one is named."""

import os
import socket

import pytest

from stack.config import StackError
from stack.ports import choose_front_port, choose_inner_ports, ephemeral_floor

NAMES = ["broker-1", "broker-2", "postgres-1"]


def test_remembered_ports_are_kept() -> None:
    first = choose_inner_ports(NAMES, {}, taken=0)
    assert choose_inner_ports(NAMES, first, taken=0) == first
    assert len(set(first.values())) == len(NAMES)
    assert all(port < max(ephemeral_floor(), 14_336) for port in first.values())


def test_a_port_that_a_stranger_took_is_chosen_anew() -> None:
    remembered = choose_inner_ports(NAMES, {}, taken=0)
    with socket.create_server(("127.0.0.1", remembered["broker-2"])):
        chosen = choose_inner_ports(NAMES, remembered, taken=0)
    assert chosen["broker-2"] != remembered["broker-2"]
    assert chosen["broker-1"] == remembered["broker-1"]


def test_the_front_port_is_not_given_to_a_service() -> None:
    remembered = choose_inner_ports(NAMES, {}, taken=0)
    chosen = choose_inner_ports(NAMES, remembered, taken=remembered["broker-1"])
    assert remembered["broker-1"] not in chosen.values()


def test_a_busy_port_names_its_holder() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(StackError, match=rf"port {port} is busy \(pid {os.getpid()}: ") as caught:
            choose_front_port(port)
    assert caught.value.exit_code == 2


def test_a_listener_on_all_addresses_makes_a_port_busy() -> None:
    with socket.create_server(("0.0.0.0", 0)) as holder, pytest.raises(StackError):
        choose_front_port(holder.getsockname()[1])
