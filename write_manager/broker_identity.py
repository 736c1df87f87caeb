"""Which of the stored brokers a registration comes from. Values in, decision out."""

from collections.abc import Container, Sequence

from db.broker_registry import StoredBroker
from myqueue.protocol.errors import RegistrationConflict
from myqueue.protocol.internal import BrokerRegistration


def row_of(request: BrokerRegistration, broker_id: int, status: str) -> StoredBroker:
    return StoredBroker(
        broker_id,
        request["endpoint"],
        request["raft_address"],
        request.get("data_address", ""),
        request["hostname"],
        request["incarnation"],
        status,
    )


def identify(request: BrokerRegistration, stored: Sequence[StoredBroker], active: Container[int]) -> int | None:
    """An id belongs to whoever has its incarnation or its endpoint; a live other owner keeps it. None: a new one."""
    by_endpoint = next((row for row in stored if row.endpoint == request["endpoint"]), None)
    asked = request["broker_id"]
    if asked is None:
        return None if by_endpoint is None else by_endpoint.broker_id
    if by_endpoint is not None and by_endpoint.broker_id != asked:
        raise RegistrationConflict(f"{request['endpoint']} is broker {by_endpoint.broker_id}")
    known = next((row for row in stored if row.broker_id == asked), None)
    same = known is None or known.incarnation == request["incarnation"] or known.endpoint == request["endpoint"]
    if known is not None and not same and asked in active:
        raise RegistrationConflict(f"broker {asked} is alive at {known.endpoint}")
    return asked
