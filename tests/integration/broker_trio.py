"""Three real brokers that replicate to each other, with a stand-in for the write manager."""

import shutil
from pathlib import Path
from typing import Any, cast

import requests

from broker.storage.entry import Entry
from myqueue.protocol.errors import NotLeader
from myqueue.protocol.internal import Configuration, PartitionReport
from tests.integration.broker_process import BrokerProcess, Registrar
from tests.stored_files import read_folder, while_written
from tests.waiting import until
from write_manager.reconfiguration import ReportedReplica, is_rebuildable, next_change

IDS = (1, 2, 3)


class Trio:
    def __init__(self, folder: Path, *more: str) -> None:
        self.registrar = Registrar()
        self._order: dict[int, list[int]] = {}
        self.brokers = {n: BrokerProcess(folder / f"broker-{n}", self.registrar.url, *more, broker_id=n) for n in IDS}

    def start(self) -> "Trio":
        self.start_all()
        until(lambda: len(self.registrar.peers) == len(IDS), within_s=20, what="all brokers are registered")
        self.await_acquainted()
        return self

    def start_all(self) -> None:
        for broker in self.brokers.values():
            broker.start(wait=False)
        for broker in self.brokers.values():
            broker.await_answer()

    def await_acquainted(self) -> None:
        """Every broker knows the addresses of the others."""
        seen = len(self.registrar.heartbeats) + 2 * len(IDS)
        until(lambda: len(self.registrar.heartbeats) > seen, within_s=20, what="heartbeats go round")

    def close(self) -> None:
        for broker in self.brokers.values():
            broker.close()
        self.registrar.close()

    def member(self, broker_id: int) -> dict[str, Any]:
        """As it registered last."""
        said = [r for r in self.registrar.registrations if r["broker_id"] == broker_id]
        return {"broker_id": broker_id, "incarnation": said[-1]["incarnation"]}

    def create(self, partition_id: int = 0, **settings: int | None) -> None:
        founders = [self.member(n) for n in IDS]
        for n in reversed(IDS):
            assert self.brokers[n].create(partition_id, founders, **settings).status_code == 201

    def report(self, broker_id: int, partition_id: int = 0) -> dict[str, Any] | None:
        """What that broker last said of its replica."""
        return self.registrar.reports.get(broker_id, {}).get(partition_id)

    def leader(self, partition_id: int = 0, within_s: float = 5) -> int:
        """Asks for the end of the log: only a leader answers."""

        def look() -> int | None:
            for broker_id, broker in self.brokers.items():
                try:
                    if broker.offsets(partition_id) is not None:
                        return broker_id
                except requests.RequestException:
                    continue
            return None

        return until(look, within_s=within_s, what="a leader")

    def move_leader(self, partition_id: int, broker_id: int) -> None:
        """Takes a moment: a broker that has just started does not vote, and a follower that lags cannot take over."""

        def move() -> bool:
            leader = self.leader(partition_id)
            if leader != broker_id:
                broker = self.brokers[leader]
                wish = broker.http.post(broker.path(partition_id) + "/leader", json={"broker_id": broker_id}, timeout=5)
                assert wish.status_code in (200, 409, 421, 503), wish.text
            return leader == broker_id

        until(move, within_s=10, what=f"broker {broker_id} leads")

    def append(self, values: list[bytes], keys: list[str], partition_id: int = 0, within_s: float = 10) -> int:
        """Retries under the same keys until it is acknowledged; the offset of the first."""
        order = self._order.setdefault(partition_id, list(IDS))  # the broker that answered last comes first

        def send() -> list[int] | None:
            broker_id = order[0]
            order.append(order.pop(0))
            try:
                answer = self.brokers[broker_id].append(values, keys, partition_id)
            except requests.RequestException:
                return None
            if answer.status_code == 200:
                order.insert(0, order.pop())
                return [result["offset"] for result in answer.json()["results"]]
            assert answer.status_code in (421, 503), answer.text
            body = answer.json()
            if body["error_code"] == NotLeader.error_code and "leader" in body.get("details", {}):
                order.sort(key=lambda n: n != body["details"]["leader"])
            return None

        return until(send, within_s=within_s, what="an append is acknowledged")[0]

    def pace(self, partition_id: int = 0) -> bool:
        """One step of what the write manager does: members follow what brokers hold. True: nothing is left to do."""
        reports = {n: report for n in IDS if (report := self.report(n, partition_id)) is not None}
        leader = next((n for n, report in reports.items() if report["configuration"] is not None), None)
        if leader is None:
            return False
        replicas = {n: ReportedReplica.of(cast(PartitionReport, report)) for n, report in reports.items()}
        configuration = reports[leader]["configuration"]
        change = next_change(IDS, configuration, replicas)
        if change is None:
            self._rebuild(partition_id, replicas, configuration)
            present = {n: replica.incarnation for n, replica in replicas.items()}
            return {m["broker_id"]: m["incarnation"] for m in configuration["voters"]} == present
        broker = self.brokers[leader]
        answer = broker.http.post(broker.path(partition_id) + "/members", json=change, timeout=5)
        assert answer.status_code in (200, 409, 421, 503), answer.text
        return False

    def _rebuild(self, partition_id: int, replicas: dict[int, ReportedReplica], configuration: Configuration) -> None:
        for n, replica in replicas.items():
            if is_rebuildable(n, replica, IDS, configuration):
                broker = self.brokers[n]
                named = {"incarnation": replica.incarnation}
                answer = broker.http.post(broker.path(partition_id) + "/rebuild", json=named, timeout=5)
                assert answer.status_code in (200, 409), answer.text

    def reconcile(self, partition_id: int = 0, within_s: float = 15) -> None:
        until(lambda: self.pace(partition_id), within_s=within_s, what="all members are voters again")

    def await_same(self, partition_id: int = 0, within_s: float = 10) -> list[bytes]:
        """Every replica shows the same messages, all that the leader has."""
        end = self.brokers[self.leader(partition_id)].read_all(partition_id)

        def same() -> bool:
            return all(broker.read_all(partition_id) == end for broker in self.brokers.values())

        until(same, within_s=within_s, what="all replicas show the same")
        return end

    def entries(self, broker_id: int, partition_id: int = 0) -> list[tuple[Entry, int]]:
        """The entries in that broker's files, with their chained checksums."""
        for stored in while_written(lambda: read_folder(self.brokers[broker_id].folder)):
            if stored.group.partition_id == partition_id:
                return list(zip(stored.entries, stored.chains, strict=True))
        return []

    def erase(self, broker_id: int) -> None:
        shutil.rmtree(self.brokers[broker_id].folder)
