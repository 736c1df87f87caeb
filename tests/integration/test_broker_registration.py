"""How a broker registers its data folder, at a real listener in the write manager's place."""

from collections.abc import Iterator
from contextlib import closing

import pytest
import structlog

from broker.heartbeat import WriteManagerHeartbeat
from broker.peers.handshake import DataFolder
from broker.retention import SharedClock
from myqueue.protocol.internal import PartitionReport
from service.calls import Caller
from service.scheduler import Scheduler
from tests.integration.broker_process import SECRET, Registrar
from tests.waiting import until

OLD, NEW = DataFolder(0xA, 4, 0x51), DataFolder(0xB, 1, 0x51)


class RegisteringBroker:
    """Everything of a broker that its heartbeat needs. A refuted folder is replaced, as a broker does it."""

    def __init__(self, url: str) -> None:
        self.folder = OLD
        self.replica: PartitionReport = {
            "topic_id": "0d9f1a52-93a4-4a0e-8f1c-6f2f0a0f4c11",
            "partition_id": 0,
            "incarnation": "a" * 16,
            "role": "follower",
            "term": 1,
            "configuration": None,
            "beginning_offset": 0,
            "end_offset": 0,
            "size_bytes": 0,
            "damaged": None,
        }
        self.taken: list[int] = []
        self.refuted: list[tuple[int, str]] = []
        self.caller = Caller(SECRET)
        self.heartbeat = WriteManagerHeartbeat(
            self.caller,
            Scheduler(structlog.get_logger()),
            self,
            structlog.get_logger(),
            write_manager_url=url,
            endpoint="http://127.0.0.1:1",
            raft_address="127.0.0.1:2",
            data_address="",
            broker_id=1,
            folder=lambda: self.folder,
            found_sequence=70,
            sequence=lambda: 75,
            keep_broker_id=lambda _: None,
            set_peers=lambda _: None,
            registered=self.taken.append,
            refuted=self.replace_folder,
            unreachable=lambda: None,
            clock=SharedClock(),
        )

    def reports(self) -> list[PartitionReport]:
        return [{**self.replica}]

    def replace_folder(self, incarnation: int, why: str) -> None:
        self.refuted.append((incarnation, why))
        self.folder = NEW


@pytest.fixture
def registrar() -> Iterator[Registrar]:
    with closing(Registrar()) as made:
        yield made


@pytest.fixture
def broker(registrar: Registrar) -> Iterator[RegisteringBroker]:
    made = RegisteringBroker(registrar.url)
    yield made
    made.caller.close()


def test_the_folder_is_registered_and_its_progress_reported(broker: RegisteringBroker, registrar: Registrar) -> None:
    broker.heartbeat.send()
    broker.heartbeat.send()
    [registration], [heartbeat] = registrar.registrations, registrar.heartbeats
    assert (registration["incarnation"], registration["starts"]) == (f"{0xA:016x}", 4)
    assert (registration["session"], registration["sequence"]) == (f"{0x51:016x}", 70)
    assert (heartbeat["incarnation"], heartbeat["session"]) == (f"{0xA:016x}", f"{0x51:016x}")
    assert heartbeat["sequence"] == 75
    assert broker.taken == [0xA]
    assert broker.refuted == []


def test_a_refuted_folder_is_replaced_and_registered_anew(broker: RegisteringBroker, registrar: Registrar) -> None:
    registrar.stale.add(f"{0xA:016x}")
    broker.heartbeat.send()
    [(incarnation, why)] = broker.refuted
    assert incarnation == 0xA
    assert "older copy" in why
    assert "9 starts of it and frame 900, here are 4 and 70" in why
    assert broker.taken == []
    problem = broker.heartbeat.problem()
    assert problem is not None
    assert "older copy" in problem
    broker.heartbeat.send()
    assert registrar.registrations[-1]["incarnation"] == f"{0xB:016x}"
    assert broker.taken == [0xB]
    assert broker.heartbeat.problem() is None


def test_damage_is_reported_with_the_next_heartbeat(broker: RegisteringBroker, registrar: Registrar) -> None:
    broker.heartbeat.send()
    broker.heartbeat.send()
    assert registrar.heartbeats[-1]["partitions"] == []
    broker.replica["damaged"] = "entry 7 does not match its checksum"
    broker.heartbeat.send_soon()
    until(lambda: len(registrar.heartbeats) == 2, within_s=5, what="a heartbeat out of turn")
    [report] = registrar.heartbeats[-1]["partitions"]
    assert report["damaged"] == "entry 7 does not match its checksum"
