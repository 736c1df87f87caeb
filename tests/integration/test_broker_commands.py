"""What the write manager's commands carry, and what it does when a broker knows a newer epoch than PostgreSQL."""

import json
from collections.abc import Iterator
from uuid import UUID, uuid4

import pytest
import structlog

from db.primary import Fenced, Primary
from myqueue.protocol import internal
from myqueue.protocol.errors import ManagerUnavailable, StaleEpoch
from myqueue.protocol.models import CreateTopic
from service.calls import Caller
from stack.local import LocalStack
from tests.integration.conftest import address
from tests.integration.stand_in_manager import StandInManager
from tests.integration.test_reconciling import Manager, registration
from write_manager.broker_commands import BrokerCommands

TOPIC_ID = UUID("0d9f1a52-93a4-4a0e-8f1c-6f2f0a0f4c11")


@pytest.fixture
def broker() -> Iterator[StandInManager]:
    """Takes every command, or refuses all of them."""
    made = StandInManager("broker")
    made.behaviour.body = b"{}"
    made.start()
    yield made
    made.stop()


class Holder:
    """A write manager that has taken over, as far as commands go."""

    def __init__(self, stack: LocalStack) -> None:
        self.fenced = 0
        self.primary = Primary(address(stack), "test", on_fenced=self._on_fenced)
        self.epoch = self.primary.take_over("test")
        self.caller = Caller("secret")
        self.commands = BrokerCommands(self.primary, self.caller, structlog.get_logger())

    def _on_fenced(self) -> None:
        self.fenced += 1

    def command(self, broker: StandInManager) -> None:
        endpoint = f"http://{broker.address}"
        self.commands.send(internal.MOVE_LEADER, endpoint, TOPIC_ID, 3, {"broker_id": 2}, timeout_s=5)

    def close(self) -> None:
        self.caller.close()
        self.primary.close()


@pytest.fixture
def holder(trio: LocalStack, primary: Primary) -> Iterator[Holder]:
    """`primary` is one that has been replaced by it; the schema is its."""
    made = Holder(trio)
    yield made
    made.close()


def refuse(broker: StandInManager, epoch: int) -> None:
    error = StaleEpoch(details={"epoch": epoch})
    broker.behaviour.status, broker.behaviour.body = error.http_status, json.dumps(error.to_body(None)).encode()


def test_a_command_carries_the_epoch(holder: Holder, broker: StandInManager) -> None:
    holder.command(broker)
    (received,) = broker.received
    assert received.headers["x-myqueue-epoch"] == str(holder.epoch)
    assert received.target == f"/internal/topics/{TOPIC_ID}/partitions/3/leader"
    assert json.loads(received.body) == {"broker_id": 2}
    assert holder.fenced == 0


def test_a_broker_that_is_ahead_of_postgresql_is_overtaken(
    holder: Holder, broker: StandInManager, trio: LocalStack
) -> None:
    ahead = holder.epoch + 100
    refuse(broker, ahead)
    with pytest.raises(StaleEpoch):
        holder.command(broker)
    assert holder.fenced == 1
    with pytest.raises(Fenced), holder.primary.transaction():
        raise AssertionError("it may write no more")
    after = Holder(trio)
    assert after.epoch == ahead + 1
    after.close()


def test_a_broker_that_registers_says_what_it_knows(holder: Holder, trio: LocalStack) -> None:
    assert [holder.commands.confirm_epoch(known) for known in (0, holder.epoch)] == [holder.epoch] * 2
    with pytest.raises(ManagerUnavailable) as refused:
        holder.commands.confirm_epoch(holder.epoch + 100)
    assert refused.value.outcome == "not_written"
    assert holder.fenced == 1
    after = Holder(trio)
    assert after.epoch == holder.epoch + 101
    after.close()


def test_one_that_was_replaced_raises_nothing(holder: Holder, broker: StandInManager, trio: LocalStack) -> None:
    """Its successor's epoch is what the broker knows: going above it would end the successor."""
    successor = Holder(trio)
    refuse(broker, successor.epoch)
    with pytest.raises(StaleEpoch):
        holder.command(broker)
    assert holder.fenced == 1
    assert successor.primary.problem() is None
    refuse(broker, successor.epoch + 100)
    with pytest.raises(StaleEpoch):
        holder.command(broker)
    assert successor.primary.problem() is None
    successor.close()


def test_a_refusal_that_names_no_newer_epoch_ends_nobody(holder: Holder, broker: StandInManager) -> None:
    for epoch in (holder.epoch, holder.epoch - 1):
        refuse(broker, epoch)
        with pytest.raises(StaleEpoch):
            holder.command(broker)
    assert holder.fenced == 0
    assert holder.primary.problem() is None


def test_a_delete_names_the_replica_as_it_was_reported(primary: Primary, broker: StandInManager) -> None:
    manager = Manager(primary, ttl_s=5.0)
    known = registration(1, incarnation=uuid4().hex[:16], port=broker.port)
    manager.heartbeats.register_broker(known)
    name = f"deleted-{uuid4().hex[:8]}"
    made, _ = manager.topics.create(CreateTopic(name=name, partitions=1, replication=1))
    manager.brokers.heartbeat(
        1,
        {
            "incarnation": known["incarnation"],
            "clock_ms": known["clock_ms"],
            "partitions": [
                {
                    "topic_id": str(made.topic_id),
                    "partition_id": 0,
                    "incarnation": "b" * 16,
                    "role": "follower",
                    "term": 3,
                    "configuration": None,
                    "beginning_offset": 0,
                    "end_offset": 9,
                    "size_bytes": 90,
                    "configuration_index": 12,
                }
            ],
        },
    )
    manager.topics.delete(name)
    broker.behaviour.received.clear()
    manager.reconciler.reconcile()
    (delete,) = [received for received in broker.received if received.method == "DELETE"]
    assert delete.target == f"/internal/topics/{made.topic_id}/partitions/0"
    assert json.loads(delete.body) == {"incarnation": "b" * 16, "configuration": 12}
    assert delete.headers["x-myqueue-epoch"] == str(primary.epoch)
