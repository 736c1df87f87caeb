"""How a broker registers its data folder, at a real listener in the write manager's place."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
import structlog

from broker.command_fence import CommandFence
from broker.heartbeat import WriteManagerHeartbeat
from broker.peers.handshake import DataFolder
from broker.retention import SharedClock
from myqueue.protocol.errors import StaleEpoch
from myqueue.protocol.internal import PartitionReport
from service.active_manager import ManagerCaller, WriteManagerFollower
from service.calls import Caller
from service.scheduler import Scheduler
from tests.integration.broker_process import SECRET, Registrar
from tests.waiting import until

OLD, NEW = DataFolder(0xA, 4, 0x51), DataFolder(0xB, 1, 0x51)


class RegisteringBroker:
    """Everything of a broker that its heartbeat needs. A refuted folder is replaced, as a broker does it."""

    def __init__(self, urls: list[str], store: Callable[[int], None] | None = None) -> None:
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
        self.stored_epochs: list[int] = []
        self.fence = CommandFence(3, store or self.stored_epochs.append)
        self.managers = ManagerCaller(Caller(SECRET), WriteManagerFollower(urls))
        self.heartbeat = WriteManagerHeartbeat(
            self.managers,
            Scheduler(structlog.get_logger()),
            self,
            structlog.get_logger(),
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
            fence=self.fence,
        )

    def reports(self) -> list[PartitionReport]:
        return [{**self.replica}]

    def replace_folder(self, incarnation: int, why: str) -> None:
        self.refuted.append((incarnation, why))
        self.folder = NEW


@pytest.fixture
def broker(registrar: Registrar) -> Iterator[RegisteringBroker]:
    made = RegisteringBroker([registrar.url])
    yield made
    made.managers.close()


@pytest.fixture
def standby() -> Iterator[Registrar]:
    with closing(Registrar()) as made:
        made.epoch = None
        yield made


@pytest.fixture
def follower(registrar: Registrar, standby: Registrar) -> Iterator[RegisteringBroker]:
    made = RegisteringBroker([standby.url, registrar.url])
    made.heartbeat.send()
    made.heartbeat.send()
    assert len(registrar.heartbeats) == 1
    yield made
    made.managers.close()


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


def test_registering_fences_older_write_managers(broker: RegisteringBroker, registrar: Registrar) -> None:
    registrar.epoch, registrar.names_epoch = 4, True
    broker.heartbeat.send()
    assert [registration["epoch"] for registration in registrar.registrations] == [3]
    assert broker.stored_epochs == [4]
    with pytest.raises(StaleEpoch), broker.fence.command(3):
        raise AssertionError("an older write manager's command was carried out")
    assert broker.taken == [0xA]


def test_a_slow_disk_does_not_keep_heartbeats_waiting(registrar: Registrar) -> None:
    """The write manager would count the broker as gone that it has just registered."""
    disk = threading.Event()

    def store(_: int) -> None:
        disk.wait(20)

    broker = RegisteringBroker([registrar.url], store)
    registrar.epoch, registrar.names_epoch = 4, True
    began_s = time.monotonic()
    with closing(broker.managers):
        for _ in range(3):
            broker.heartbeat.send()
        assert time.monotonic() - began_s < 5
        assert (len(registrar.registrations), len(registrar.heartbeats)) == (1, 2)
        assert broker.fence.epoch == 4, "it counts before it is stored"
        disk.set()
        with broker.fence.command(4):
            assert broker.fence.epoch == 4


def test_problems_that_alternate_during_a_takeover_are_logged_once(
    registrar: Registrar, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = RegisteringBroker([registrar.url])
    registrar.epoch = None
    problems = set()
    with closing(broker.managers):
        for hangs_up in (False, True) * 2:
            registrar.is_dead = hangs_up
            broker.heartbeat.send()
            problems.add(broker.heartbeat.problem())
    assert len(problems) == 2
    assert capsys.readouterr().out.count("did not take the heartbeat") == 1


def test_an_older_write_manager_registers_nobody(broker: RegisteringBroker, registrar: Registrar) -> None:
    registrar.epoch, registrar.names_epoch = 2, True
    broker.heartbeat.send()
    assert broker.taken == []
    problem = broker.heartbeat.problem()
    assert problem is not None
    assert "newer write manager" in problem
    registrar.epoch = 3
    broker.heartbeat.send()
    assert broker.taken == [0xA]
    assert broker.stored_epochs == []  # it was known
    assert broker.heartbeat.problem() is None


@pytest.mark.parametrize("fault", ["killed", "handed over", "paused"])
def test_a_broker_registers_at_the_write_manager_that_takes_over(
    follower: RegisteringBroker, registrar: Registrar, standby: Registrar, fault: str
) -> None:
    """With the first heartbeat there, although nothing has changed since the last one to the one before."""
    if fault == "killed":
        registrar.die()
    elif fault == "handed over":
        registrar.epoch = None
    else:
        registrar.answering.clear()
    follower.heartbeat.send()  # none is active
    standby.epoch = 2
    follower.heartbeat.send()
    [registration] = standby.registrations
    assert registration["partitions"] == follower.reports()
    follower.heartbeat.send()
    assert standby.heartbeats[-1]["partitions"] == []
    registrar.answering.set()


def test_a_broker_leaves_a_write_manager_that_answers_when_another_one_has_taken_over(
    follower: RegisteringBroker, registrar: Registrar, standby: Registrar
) -> None:
    """The one before has lost only its way to PostgreSQL, and answers heartbeats as ever."""
    standby.epoch = 2
    follower.managers.follow()
    follower.heartbeat.send()
    assert [registration["partitions"] for registration in standby.registrations] == [follower.reports()]
    before = len(registrar.heartbeats)
    follower.heartbeat.send()
    assert len(registrar.heartbeats) == before


def test_a_broker_registers_again_although_the_new_one_knows_it(
    follower: RegisteringBroker, registrar: Registrar, standby: Registrar
) -> None:
    """The same process at the same address may be another write manager: its epoch tells."""
    registrar.epoch = 5
    follower.heartbeat.send()
    assert len(registrar.registrations) == 2


def test_a_fenced_write_manager_that_resumes_is_not_listened_to(
    follower: RegisteringBroker, registrar: Registrar, standby: Registrar
) -> None:
    registrar.answering.clear()
    standby.epoch = 2
    follower.heartbeat.send()
    follower.heartbeat.send()
    assert len(standby.registrations) == 1
    registrar.answering.set()
    before = len(registrar.heartbeats)
    for _ in range(3):
        follower.heartbeat.send()
    assert len(registrar.heartbeats) == before
    assert len(standby.registrations) == 1
