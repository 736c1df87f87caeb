"""The runner as the arbiter of the PostgreSQL trio: looks at the servers, carries out what failover.py decides."""

import asyncio
import os
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from service.logs import Log
from stack import failover
from stack.config import StackError
from stack.failover import PromotionRequest, Seen, WalPosition
from stack.home import Home
from stack.postgres import RunCommand, Trio, slot_of
from stack.postgres_query import Answered, NoAnswer, Row, query
from stack.primary_record import PrimaryRecord, Promotion, RecordRefused, read_record, save_record
from stack.process import PreparationFailed, kill_servers_in
from stack.promotion_requests import PromotionRequests

LOOK_S = 0.1
CHECK_S = 0.25  # that the data is there
READ_EVERY = 4  # checks
QUERY_TIMEOUT_S = 3.0
PROMOTION_TIMEOUT_S = 60.0
REPORT_WAIT_S = 5.0
# Longer than two rounds of wal_retrieve_retry_interval: after a receiver has ended, replay first looks for more WAL in
# the folder, then at the primary, and again.
SETTLED_S = 1.5
FOLLOW_S = 5.0  # after this a standby that does not stream is looked at
FOLLOW_TIMELINE_S = 30.0
LAG_S = 0.5  # a runner that is later than this gave a server less time than it was to have
FORGET_KILLS_S = 600.0

_IDENTIFY = "IDENTIFY_SYSTEM"
_READ = "SELECT pg_is_in_recovery(), EXISTS (SELECT FROM pg_stat_wal_receiver WHERE status = 'streaming')"
_REPLAY = """SELECT pg_last_wal_replay_lsn() - '0/0'::pg_lsn, pg_last_wal_receive_lsn() - '0/0'::pg_lsn,
    EXISTS (SELECT FROM pg_stat_wal_receiver), pg_is_wal_replay_paused(),
    (SELECT wait_event FROM pg_stat_activity WHERE backend_type = 'startup')"""
# A slot that lost its place in the WAL is of no use, nor one of an earlier life as the primary.
_SLOT = """SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots
        WHERE slot_name = '{slot}' AND NOT active AND wal_status IN ('lost', 'unreserved');
    SELECT pg_create_physical_replication_slot('{slot}', true)
        WHERE NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = '{slot}')"""
# A promotion that another one replaced leaves them on a standby, where they keep WAL that nobody takes.
_DROP_SLOTS = """SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots
    WHERE slot_name IN ({slots}) AND NOT active AND pg_is_in_recovery()
        AND EXISTS (SELECT FROM pg_stat_wal_receiver WHERE status = 'streaming')"""
_SLOT_STATUS = "SELECT wal_status FROM pg_replication_slots WHERE slot_name = '{slot}'"


class Servers(Protocol):
    """The supervised processes of the trio."""

    def is_running(self, name: str, *, ready: bool = False) -> bool: ...
    def is_stopped(self, name: str) -> bool: ...
    def kill(self, name: str) -> None: ...
    def reload(self, name: str) -> None: ...
    async def end(self, name: str) -> None: ...
    def report(self, name: str, problem: str) -> None: ...


@dataclass
class _Watched:
    """What is remembered of one server between two looks at it."""

    checks: int = 0  # since it was ready
    failed_reads: int = 0
    hang_kills: int = 0
    hang_killed_s: float = 0.0
    damaged_starts: int = 0
    cannot_follow: bool = False
    streamed_s: float = 0.0  # the last time
    is_tidy: bool = False
    log_position: int = 0  # where the log of the present start begins
    log_size: int = -1
    log_moved_s: float = 0.0
    silent_start_s: float = 0.0
    replayed: int = -1
    replayed_since_s: float = 0.0  # since when replay stands still


class Arbiter:
    def __init__(self, home: Home, trio: Trio, servers: Servers, run: RunCommand, log: Log, *, hang_s: float) -> None:
        self._home = home
        self._trio = trio
        self._servers = servers
        self._run = run
        self._log = log
        self._read_timeout_s = hang_s / failover.HUNG_READS
        self._watched = {name: _Watched() for name in trio.names}
        self._requests = PromotionRequests(home)
        self._lagged_s = 0.0  # the last time that the event loop was late

    # What the supervisor calls.

    async def prepare(self, name: str) -> None:
        """Returns when the server can start from its folder: the same one, or another after a promotion."""
        began_s = time.monotonic()
        reported: str | None = None
        if self._trio.has_other_settings(name):
            self._watched[name].damaged_starts = 0  # they may have been what was wrong
        while True:
            record = self._record()
            seen, request = await self._look(name, record), self._request_for(name)
            step = failover.next_step(name, record, seen, now_s=time.time(), request=request)
            match step:
                case failover.Start():
                    if record is not None and read_record(self._trio.folder) is None:
                        save_record(self._trio.folder, record)  # of an older stack
                    self._trio.write_settings(name)
                    return
                case failover.Initialise():
                    await self._initialise(name)
                case failover.Promote(chosen):
                    await self._decide(name, chosen, by_person=request is not None)
                case failover.FinishPromotion(chosen):
                    await self._promote(name, chosen)
                case failover.Rebuild(reason):
                    await self._rebuild(name, reason)
                case failover.Wait(reason):
                    if reason != reported and time.monotonic() - began_s > REPORT_WAIT_S:
                        reported = reason
                        self._log.warning("waiting", name=name, reason=reason)
                        self._servers.report(name, reason)
                    await self._pause(name)
                case failover.Refuse(reason):
                    self._requests.answer(reason)
                    raise PreparationFailed(reason)
                case failover.Kill():
                    await asyncio.sleep(LOOK_S)  # its own task sees the end of it first

    def starting(self, name: str) -> None:
        watched, log = self._watched[name], self._home.log_file(name)
        watched.log_position = log.stat().st_size if log.exists() else 0
        watched.log_size, watched.silent_start_s, watched.failed_reads = -1, 0.0, 0

    def ended(self, name: str, *, was_ready: bool) -> None:
        """Counts the starts in a row that failed because data is damaged, and knows why a standby cannot start."""
        watched = self._watched[name]
        if was_ready:
            watched.damaged_starts = 0
            return
        with self._home.log_file(name).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(watched.log_position if watched.log_position <= size else 0)  # it was rotated meanwhile
            text = file.read().decode(errors="replace")
        damage = failover.damage_in(text, self._trio.data(name))
        watched.damaged_starts = 0 if damage is None else watched.damaged_starts + 1
        if damage is not None:
            self._log.error("damaged data", name=name, starts=watched.damaged_starts, error=damage)
        if failover.is_diverged(text) and self._primary() not in ("", name):
            watched.cannot_follow = True

    def is_requested(self, name: str) -> bool:
        """Whether a person wants another primary than this server."""
        return self._request_for(name) is not None

    def is_replaced(self, name: str) -> bool:
        """Whether a promotion over this server is wanted or in progress: it goes on while the server is kept down."""
        try:
            record = read_record(self._trio.folder)
        except RecordRefused:
            return False
        in_progress = record is not None and record.primary == name and record.promotion is not None
        return in_progress or self.is_requested(name)

    async def take_requests(self) -> None:
        """Of persons, by `promote NAME`."""
        self._requests.forget()
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                request = self._requests.take(time.monotonic())
                if request is not None:
                    await self._consider(request)
            except (PreparationFailed, StackError, OSError) as error:
                self._log.error("a request failed", error=str(error))
                self._requests.answer(str(error))

    async def _consider(self, request: PromotionRequest) -> None:
        """A primary that runs is stopped when nothing speaks against the promotion."""
        primary = self._primary()
        if not self._servers.is_running(primary):
            return
        # Who is further is known when the primary has stopped: it sends them the rest before.
        seen = {
            name: replace(each, is_settled=True, position=each.position and WalPosition(0, 0))
            for name, each in (await self._look(primary, self._record())).items()
        }
        step = failover.next_step(primary, self._record(), seen, now_s=time.time(), request=request)
        if isinstance(step, failover.Refuse | failover.Wait):
            self._requests.answer(step.reason)
        else:
            await self._servers.end(primary)

    async def notice_lag(self) -> None:
        while True:
            began_s = time.monotonic()
            await asyncio.sleep(LOOK_S)
            if time.monotonic() - began_s - LOOK_S > LAG_S:
                self._lagged_s = time.monotonic()

    async def watch(self, name: str) -> None:
        """Kills the server when its data is gone or when it hangs; what then happens, `prepare` decides."""
        while True:
            await asyncio.sleep(CHECK_S)
            try:
                await self._check(name)
            except (StackError, OSError) as error:
                self._log.error("could not look", name=name, error=str(error))

    async def _check(self, name: str) -> None:
        watched = self._watched[name]
        is_ready = self._servers.is_running(name, ready=True)
        if is_ready:
            watched.checks += 1
            if watched.checks % READ_EVERY == 0 or watched.failed_reads:
                await self._check_answers(name)
        else:
            watched.checks, watched.streamed_s, watched.is_tidy = 0, time.monotonic(), False
            if not self._servers.is_running(name):
                return
            self._check_start(name)
        seen = replace(self._see(name, None), is_running=True)
        step = failover.next_step(name, None, {name: seen}, now_s=time.time())
        is_due = self._servers.is_running(name, ready=True) or (not is_ready and seen.is_stuck)
        if isinstance(step, failover.Kill) and is_due:
            self._log.error("killing", name=name, reason=step.reason)
            if seen.is_hung or seen.is_stuck:
                watched.hang_kills, watched.hang_killed_s = watched.hang_kills + 1, time.monotonic()
            watched.failed_reads = 0
            self._servers.kill(name)

    async def _check_answers(self, name: str) -> None:
        watched = self._watched[name]
        streams = await self._read(name)
        if streams or name == self._primary():
            watched.streamed_s = time.monotonic()
        if streams and not watched.is_tidy:
            slots = ", ".join(f"'{slot_of(each)}'" for each in self._trio.names)
            with suppress(NoAnswer, Answered):
                await self._query(name, _DROP_SLOTS.format(slots=slots))
            await self._trio.remove_replaced(name)
            watched.is_tidy = True
        for_s = time.monotonic() - watched.streamed_s
        if for_s > FOLLOW_S:
            watched.cannot_follow = await self._cannot_follow(name, for_s)

    def _check_start(self, name: str) -> None:
        """How long the log of a server that is not ready stands still."""
        watched, now_s = self._watched[name], time.monotonic()
        size = self._home.log_file(name).stat().st_size
        if size != watched.log_size:
            watched.log_size, watched.log_moved_s = size, now_s
        watched.silent_start_s = now_s - watched.log_moved_s if self._read_timeout_s else 0.0

    # How it looks at the servers.

    def _record(self) -> PrimaryRecord | None:
        try:
            return self._trio.record()
        except RecordRefused as error:
            raise PreparationFailed(str(error)) from None

    def _primary(self) -> str:
        """As long as there is no record that can be read: none."""
        try:
            return self._trio.primary()
        except RecordRefused:
            return ""

    def _request_for(self, name: str) -> PromotionRequest | None:
        request = self._requests.open_at(time.monotonic())
        return request if request is not None and name == self._primary() else None

    def _see(self, name: str, record: PrimaryRecord | None) -> Seen:
        folder = self._trio.seen(name)
        watched = self._watched[name]
        identifier = folder.system_identifier
        others = [each for each in self._trio.names if each != name and self._servers.is_running(each, ready=True)]
        return Seen(
            folder.state,
            is_foreign=record is not None and identifier not in (None, record.system_identifier),
            is_stopped=self._servers.is_stopped(name),
            failed_reads=watched.failed_reads,
            others_fail=any(self._watched[each].failed_reads for each in others),
            hang_kills=watched.hang_kills,
            silent_start_s=watched.silent_start_s,
            damaged_starts=watched.damaged_starts,
            cannot_follow=watched.cannot_follow,
        )

    async def _look(self, name: str, record: PrimaryRecord | None) -> dict[str, Seen]:
        """Positions are looked at only when the primary cannot start from its folder."""
        seen = {each: self._see(each, record) for each in self._trio.names}
        if record is not None and name == record.primary and (seen[name].is_lost or self.is_requested(name)):
            for each in seen:
                if each != name:
                    seen[each] = await self._with_position(each, seen[each])
        return seen

    async def _with_position(self, name: str, seen: Seen) -> Seen:
        if not self._servers.is_running(name, ready=True):
            return seen
        try:
            timeline = await self._timeline(name)
            [(replayed, received, is_receiving, is_paused, waits_for)] = await self._query(name, _REPLAY)
            if is_paused:
                await self._query(name, "SELECT pg_wal_replay_resume()")
        except (NoAnswer, Answered, ValueError) as error:
            self._log.info("no position", name=name, error=str(error))
            return seen
        if replayed is None:
            return seen
        watched, now_s = self._watched[name], time.monotonic()
        if int(replayed) != watched.replayed or is_receiving or is_paused:
            watched.replayed, watched.replayed_since_s = int(replayed), now_s
        stands_s = now_s - watched.replayed_since_s
        # What was received may end within a record, which is never replayed.
        is_at_end = replayed == received or (stands_s > SETTLED_S and waits_for == "RecoveryRetrieveRetryInterval")
        return replace(
            seen,
            position=WalPosition(timeline, int(replayed)),
            is_settled=is_at_end and not is_receiving and not is_paused,
        )

    async def _read(self, name: str) -> bool:
        """Whether it streams from the primary. Counts reads in a row that failed."""
        watched, began_s = self._watched[name], time.monotonic()
        try:
            [(_, streams)] = await self._query(name, _READ, timeout_s=self._read_timeout_s or QUERY_TIMEOUT_S)
        except NoAnswer as error:
            if self._read_timeout_s and self._lagged_s < began_s:
                watched.failed_reads += 1
            self._log.warning("a read failed", name=name, in_a_row=watched.failed_reads, error=str(error))
            return False
        except Answered:
            streams = False
        watched.failed_reads = 0
        watched.silent_start_s = 0.0
        if began_s - watched.hang_killed_s > FORGET_KILLS_S:
            watched.hang_kills = 0
        return bool(streams)

    async def _cannot_follow(self, name: str, for_s: float) -> bool:
        """The primary no longer has the WAL that this standby lacks, or it is on another timeline."""
        primary = self._primary()
        if not self._servers.is_running(primary, ready=True):
            return False
        try:
            rows = await self._query(primary, _SLOT_STATUS.format(slot=slot_of(name)))
            if rows in ([], [("lost",)]):
                return True
            return for_s > FOLLOW_TIMELINE_S and await self._timeline(name) != await self._timeline(primary)
        except (NoAnswer, Answered):
            return False

    async def _timeline(self, name: str) -> int:
        [(_, timeline, *_)] = await self._query(name, _IDENTIFY, replication=True)
        return int(timeline)

    async def _query(
        self, name: str, statement: str, *, timeout_s: float = QUERY_TIMEOUT_S, replication: bool = False
    ) -> list[Row]:
        return await query(
            self._trio.ports[name],
            self._trio.secrets.admin_password,
            statement,
            timeout_s=timeout_s,
            replication=replication,
        )

    # What it does.

    async def _initialise(self, name: str) -> None:
        self._log.info("first start: making an empty database", name=name)
        await self._trio.initialise(name, self._run)
        record = self._trio.record()
        assert record is not None
        save_record(self._trio.folder, record)

    async def _decide(self, old: str, chosen: str, *, by_person: bool) -> None:
        record = self._record()
        assert record is not None
        self._log.warning("promotion decided", old=old, chosen=chosen, by_person=by_person, timeline=record.timeline)
        promoted_at = record.promoted_at if by_person else time.time()
        save_record(
            self._trio.folder,
            replace(record, promoted_at=promoted_at, promotion=Promotion(chosen, record.timeline)),
        )
        await self._promote(old, chosen)

    async def _promote(self, old: str, chosen: str) -> None:
        """Every step may be the second one of its kind: an earlier runner may have been killed after it."""
        record = self._record()
        assert record is not None
        assert record.promotion is not None
        await self._make_sure_it_is_dead(old)
        await self._trio.move_aside(old, record.promotion.timeline)
        others = [name for name in self._trio.names if name != chosen]
        try:
            async with asyncio.timeout(PROMOTION_TIMEOUT_S):
                while not self._servers.is_running(chosen, ready=True):
                    await asyncio.sleep(LOOK_S)
                if (await self._query(chosen, "SELECT pg_is_in_recovery()"))[0][0]:
                    for each in others:
                        await self._make_slot(chosen, each)
                    await self._query(chosen, "SELECT pg_promote(wait => false)")
                while (await self._query(chosen, "SELECT pg_is_in_recovery()"))[0][0]:
                    await asyncio.sleep(LOOK_S / 2)
                timeline = await self._timeline(chosen)
        except (TimeoutError, NoAnswer, Answered) as error:
            raise PreparationFailed(f"{chosen} could not be promoted: {error or 'it takes too long'}") from None
        save_record(self._trio.folder, replace(record, primary=chosen, timeline=timeline, promotion=None))
        self._log.warning("promoted", name=chosen, timeline=timeline)
        for each in self._trio.names:
            if each != old and self._trio.seen(each).state != "missing":
                self._trio.write_settings(each)
                self._servers.reload(each)  # one that does not run reads them when it starts
        self._requests.answer(None)

    async def _make_sure_it_is_dead(self, name: str) -> None:
        if not await kill_servers_in(self._trio.data(name), "postgres"):
            raise PreparationFailed(f"a process works in {self._trio.data(name)} and cannot be killed")

    async def _pause(self, name: str) -> None:
        if self._servers.is_stopped(name) and not self.is_replaced(name):
            raise PreparationFailed("it is to stay down")
        await asyncio.sleep(LOOK_S)

    async def _make_slot(self, primary: str, name: str) -> None:
        for statement in _SLOT.format(slot=slot_of(name)).split(";"):
            await self._query(primary, statement)

    async def _rebuild(self, name: str, reason: str) -> None:
        primary = self._primary()
        if not self._servers.is_running(primary, ready=True):
            await self._pause(name)
            return
        self._log.warning("copying the primary", name=name, primary=primary, reason=reason)
        await self._make_sure_it_is_dead(name)
        try:
            await self._make_slot(primary, name)
        except (NoAnswer, Answered) as error:
            raise PreparationFailed(f"{primary} has no slot for {name}: {error}") from None
        await self._trio.copy_primary(name, self._run)
        watched = self._watched[name]
        watched.damaged_starts, watched.cannot_follow = 0, False
