"""A broker keeps its id over restarts, moves and lost data; nobody takes the id of one that is alive."""

import pytest

from db.broker_registry import StoredBroker
from myqueue.protocol.errors import RegistrationConflict
from myqueue.protocol.internal import BrokerRegistration
from write_manager.brokers import _row, identify_broker


def request(broker_id: int | None, at: str, incarnation: str) -> BrokerRegistration:
    return {
        "broker_id": broker_id,
        "endpoint": at,
        "raft_address": "",
        "hostname": "",
        "incarnation": incarnation,
        "clock_ms": 0,
        "partitions": [],
    }


def row(broker_id: int, at: str, incarnation: str) -> StoredBroker:
    return _row(request(broker_id, at, incarnation), broker_id, "active")


STORED = [row(1, "A", "a"), row(2, "B", "b")]


@pytest.mark.parametrize(
    ("asked", "broker_id"),
    [
        (request(None, "C", "c"), None),
        (request(None, "A", "a"), 1),
        (request(None, "A", "c"), 1),
        (request(2, "B", "c"), 2),
        (request(2, "C", "b"), 2),
        (request(3, "C", "c"), 3),
    ],
)
def test_an_id_goes_with_the_endpoint_or_the_data(asked: BrokerRegistration, broker_id: int | None) -> None:
    assert identify_broker(asked, STORED, {1, 2}) == broker_id


@pytest.mark.parametrize(("asked", "active"), [(request(3, "A", "c"), set()), (request(2, "C", "c"), {2})])
def test_what_another_one_has_is_refused(asked: BrokerRegistration, active: set[int]) -> None:
    with pytest.raises(RegistrationConflict):
        identify_broker(asked, STORED, active)


def test_who_is_dead_gives_its_id_to_its_successor() -> None:
    assert identify_broker(request(2, "C", "c"), STORED, {1}) == 2
