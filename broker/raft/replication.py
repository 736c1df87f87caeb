"""Entries from the leader to its followers.

The leader gives each request index, offset and time, and sends it while its own disk is still writing. A follower keeps
entries that agree, drops those that contradict, and answers only when its disk has them. The leader counts itself only
by what its own disk has confirmed, and counts replicas only for entries of its own term: older entries are committed by
what comes after them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.raft.configuration import MemberId, majority_index
from broker.raft.context import COMMITS, InvariantBroken
from broker.raft.dedupe import DedupeResult, PendingDedupe
from broker.raft.effects import Load
from broker.raft.entry import Body, Kind, LogEntry, LogStart, Stamp
from broker.raft.events import (
    AdvanceLogStart,
    DedupeOutcome,
    EntryCommitted,
    LeadershipLost,
    Loaded,
    NotGroupLeader,
    PendingFull,
    Propose,
    QuorumFull,
    RequestRefused,
)
from broker.raft.messages import Append, AppendReply, InstallSnapshot
from broker.raft.progress import Mode, Progress
from broker.raft.read_index import ReadRequest
from broker.raft.reorder_buffer import ReorderBuffer, is_ahead
from myqueue.protocol.dedup_records import DedupRecord

if TYPE_CHECKING:
    from broker.raft.group import RaftGroup


class Replication:
    """A follower has no `progress`, no `pending` and nothing `waiting`."""

    __slots__ = (
        "_group",
        "_overtaking",
        "_pending",
        "_pending_bytes",
        "progress",
        "reorder_due",
        "retry_due",
        "waiting",
    )

    def __init__(self, group: RaftGroup) -> None:
        self._group = group
        self.progress: dict[MemberId, Progress] = {}
        self._pending: PendingDedupe | None = None
        self._pending_bytes = 0
        self.waiting: dict[int, int] = {}  # log index -> request
        self.retry_due: int | None = None
        self._overtaking: ReorderBuffer | None = None  # most groups never have one
        self.reorder_due: int | None = None

    def lead(self) -> None:
        group = self._group
        log, now = group.log, group.context.now
        self.progress = {
            m: Progress(log.last_index + 1, now) for m in group.membership.configuration.members if m != group.me
        }
        self._pending = PendingDedupe(group.state.dedupe)
        for entry in log.between(group.state.applied + 1, log.last_index):
            self._pending.add(entry)
            self._count_pending(entry.size)

    def resign(self) -> None:
        """Requests in the log end as unknown: a later leader may still commit them."""
        group = self._group
        self.retry_due = None
        for request in self.waiting.values():
            group.resolve(request, LeadershipLost())
        self.waiting.clear()
        for event in self._overtaking.take_all() if self._overtaking is not None else ():
            group.resolve(event.request, NotGroupLeader(group.leader))
        self._overtaking = self.reorder_due = None
        self._pending = None
        self._count_pending(-self._pending_bytes)

    def _count_pending(self, size: int) -> None:
        self._pending_bytes += size
        self._group.context.pending_bytes += size

    def forget_followers(self) -> None:
        group = self._group
        for member in self.progress:
            group.context.peer(member.broker_id).remove_row(group.row_key(member))
        self.progress = {}

    # The leader appends

    def propose(self, event: Propose) -> None:
        if not self._may_append(event):
            return
        assert self._pending is not None
        whole, results = self._pending.check(event.stamp, event.count, event.dedup_records)
        if is_ahead(whole) and self._wait_for_predecessors(event):
            return
        self._append_checked(event, whole, results)
        if event.stamp is not None and self._overtaking is not None:
            self._append_successors(event.stamp.producer_id)

    def _may_append(self, event: Propose) -> bool:
        """Resolves the request if not."""
        group = self._group
        if not group.accepts(event.request):
            return False
        pending, total = self._pending_bytes, group.context.pending_bytes
        if pending >= group.settings.pending_bytes or total >= group.settings.pending_bytes_total:
            group.resolve(event.request, PendingFull(pending))
            return False
        if not self._quorum_has_room():
            group.resolve(event.request, QuorumFull())
            return False
        return True

    def _append_checked(self, event: Propose, whole: DedupeResult, results: tuple[DedupeResult, ...]) -> None:
        if whole is not None or any(result is not None for result in results):
            last_index = self._group.log.last_index
            self._group.confirm(ReadRequest(event.request, last_index, DedupeOutcome(whole, results)))
            return
        entry = self.append(Kind.MESSAGES, event.wall_ms, event.body, event.count, event.stamp, event.dedup_records)
        self.waiting[entry.index] = event.request

    # Batches that have overtaken those before them

    def _wait_for_predecessors(self, event: Propose) -> bool:
        if self._overtaking is None:
            self._overtaking = ReorderBuffer(self._group.context)
        due = self._overtaking.add(event)
        if due is not None and self.reorder_due is None:
            self.reorder_due = due
            self._group.wake_at(due)
        return due is not None

    def _append_successors(self, producer_id: int) -> None:
        """As soon as their predecessors are in the log, committed or not: they become durable in that order."""
        assert self._pending is not None
        assert self._overtaking is not None
        while (event := self._overtaking.take_next(producer_id, self._pending)) is not None:
            if self._may_append(event):
                self._append_checked(event, *self._pending.check(event.stamp, event.count, event.dedup_records))

    def on_reorder_due(self) -> None:
        assert self._pending is not None
        assert self._overtaking is not None
        for event in self._overtaking.take_due():
            if self._may_append(event):
                self._append_checked(event, *self._pending.check(event.stamp, event.count, event.dedup_records))
        self.reorder_due = self._overtaking.next_due()

    def _quorum_has_room(self) -> bool:
        group = self._group
        context, configuration = group.context, group.membership.configuration
        full = sum(
            1
            for voter in configuration.voters
            if (context.disk_low if voter == group.me else not context.has_room(voter.broker_id))
        )
        return len(configuration.voters) - full >= configuration.quorum

    def advance_log_start(self, event: AdvanceLogStart) -> None:
        group = self._group
        if not group.accepts(event.request):
            return
        if not group.log.start_index < event.start_index <= group.state.applied + 1:
            refusal = RequestRefused("the cut must lie between the log's start and what is applied")
            group.resolve(event.request, refusal)
            return
        entry = self.append(Kind.TRUNCATE, event.wall_ms, LogStart(event.start_index, event.start_offset))
        self.waiting[entry.index] = event.request

    def append(
        self,
        kind: Kind,
        wall_ms: int,
        body: Body = None,
        count: int = 0,
        stamp: Stamp | None = None,
        dedup_records: tuple[DedupRecord, ...] = (),
    ) -> LogEntry:
        group = self._group
        log = group.log
        time = max(wall_ms, log.last_time)
        entry = LogEntry(log.last_index + 1, group.term, kind, log.end_offset, time, count, stamp, dedup_records, body)
        log.append(entry)
        assert self._pending is not None
        self._pending.add(entry)
        self._count_pending(entry.size)
        group.touch()
        return entry

    def settle(self, entry: LogEntry) -> None:
        """The entry is applied. Called by `StateMachine.apply_entry`; no effect on a follower."""
        if self._pending is None:
            return
        group = self._group
        self._pending.settle(entry)
        self._count_pending(-entry.size)
        if entry.kind is Kind.NOOP and entry.term == group.term:
            group.ready = True
            group.announce()
        self.answer(entry)

    def answer(self, entry: LogEntry) -> None:
        """The entry is committed."""
        request = self.waiting.pop(entry.index, None)
        if request is not None:
            self._group.resolve(request, EntryCommitted(entry.index, entry.base_offset, entry.append_time))

    # The leader sends

    def replicate(self) -> None:
        """Once in a round: requests that came together are sent together."""
        group = self._group
        behind = False
        last = group.log.last_index
        for member, progress in self.progress.items():
            if progress.match < last:
                behind = True
                self._feed(member, progress)
        if (behind or group.reads.in_flight) and self.retry_due is None:
            self._plan_retry()

    def _plan_retry(self) -> None:
        group = self._group
        self.retry_due = group.context.now + group.settings.retry_ms
        group.wake_at(self.retry_due)

    def _feed(self, member: MemberId, progress: Progress) -> None:
        group = self._group
        log, settings, context = group.log, group.settings, group.context
        while progress.next <= log.last_index and not progress.paused(settings.window_messages, settings.window_bytes):
            previous = progress.next - 1
            if previous < log.start_index - 1:
                progress.snapshot_sent(context.now)
                group.send(member, InstallSnapshot(group.term, group.state.snapshot()), gated=False)
                return
            max_bytes = settings.append_bytes if progress.mode is Mode.STREAM else settings.probe_bytes
            entries = log.slice(progress.next, max_bytes)
            if entries is None:
                progress.load(context.now)
                context.round.loads.append(Load(group.id, member, progress.next, max_bytes))
                return
            self._append_to(member, progress, tuple(entries))

    def _append_to(self, member: MemberId, progress: Progress, entries: tuple[LogEntry, ...]) -> None:
        group = self._group
        previous = entries[0].index - 1
        previous_term = group.log.term_at(previous)
        assert previous_term is not None
        commit = group.state.commit_index
        group.send(member, Append(group.term, previous, previous_term, entries, commit), gated=False)
        progress.commit = max(progress.commit, min(commit, entries[-1].index))
        progress.sent(entries[-1].index, sum(entry.size for entry in entries), group.context.now)

    def on_loaded(self, event: Loaded) -> None:
        progress = self.progress.get(event.to)
        if progress is None or not progress.loading:
            return
        progress.loading = False
        entries, log = event.entries, self._group.log
        # Meanwhile this broker may have lost and regained leadership, or cut its log.
        fits = event.first_index == progress.next and event.first_index >= log.start_index
        if fits and not entries:
            progress.hold(self._group.context.now)
        elif fits and all(log.term_at(entry.index) == entry.term for entry in entries):
            self._append_to(event.to, progress, entries)
        self._group.touch()

    def on_append_reply(self, sender: MemberId, message: AppendReply) -> None:
        progress = self.progress.get(sender)
        if progress is None:
            return
        group = self._group
        log = group.log
        if message.match is None:
            agree = log.last_at_most(min(message.hint_index, log.last_index), message.hint_term)
            if progress.refused(message.previous_index, min(agree, message.hint_index)):
                group.touch()
            return
        if message.match > log.last_index:
            raise InvariantBroken(f"{sender} confirms entry {message.match}, the leader's log ends before it")
        if progress.acknowledged(message.match, log.start_index, group.context.now):
            group.context.rows_due[group.id] = None
            if message.match > group.state.commit_index:
                self.count_replicas()
            elif message.match > progress.commit:
                self._plan_commits()
            if message.match == log.last_index:
                self.trim()
        group.touch()

    def on_append_refused(self, sender: MemberId) -> None:
        """Until the retry deadline, or until its broker reports room again, entries would be refused as well."""
        progress = self.progress.get(sender)
        if progress is not None:
            progress.hold(self._group.context.now)
            self._group.touch()

    def count_replicas(self) -> None:
        """Leader: commit what a majority of voters has on disk."""
        group = self._group
        configuration = group.membership.configuration
        durable_index, me, progress = group.persistence.durable_index, group.me, self.progress
        matches = [durable_index if voter == me else progress[voter].match for voter in configuration.voters]
        index = majority_index(matches, configuration.quorum)
        if index > group.state.commit_index and self.may_count(index):
            group.state.commit_index = index
            group.context.rows_due[group.id] = None
            self._plan_commits()
            group.state.apply()

    def _plan_commits(self) -> None:
        context = self._group.context
        if not context.commits_due:
            context.deadlines.plan(COMMITS, context.now + context.settings.commit_ms)
        context.commits_due[self._group.id] = None

    def may_count(self, index: int) -> bool:
        return self._group.log.term_at(index) == self._group.term

    def trim(self) -> None:
        """Applied entries leave memory, but for a few that a slower follower will need at once."""
        group = self._group
        applied = group.state.applied
        behind = any(p.match < applied for p in self.progress.values())
        group.log.evict(applied, group.settings.tail_bytes if behind else -1)

    def on_retry_due(self) -> None:
        group = self._group
        context = group.context
        since = context.now - group.settings.retry_ms
        for member, progress in self.progress.items():
            if progress.stuck(since) and context.peer(member.broker_id).contact:
                progress.retry()
        if group.reads.in_flight:
            group.probe_voters()
        last = group.log.last_index
        lags = any(p.match < last and context.peer(m.broker_id).contact for m, p in self.progress.items())
        if lags or group.reads.in_flight:
            self._plan_retry()
        group.touch()

    def resume(self, broker_id: int) -> None:
        """That broker is back: messages in flight to it are lost."""
        for member, progress in self.progress.items():
            if member.broker_id == broker_id:
                progress.retry()
                self._group.touch()

    def set_members(self, members: tuple[MemberId, ...]) -> None:
        group = self._group
        for member in members:
            if member != group.me and member not in self.progress:
                self.progress[member] = Progress(group.log.last_index, group.context.now)
        for member in [m for m in self.progress if m not in members]:
            del self.progress[member]
            group.context.peer(member.broker_id).remove_row(group.row_key(member))
        group.context.rows_due[group.id] = None

    def has_caught_up(self, member: MemberId) -> bool:
        group = self._group
        progress = self.progress.get(member)
        return progress is not None and progress.match + group.settings.promote_lag >= group.log.last_index

    # A follower stores

    def on_append(self, sender: MemberId, message: Append) -> None:
        group = self._group
        log, commit_index = group.log, group.state.commit_index
        previous = message.previous_index
        entries = message.entries
        match = max(previous + len(entries), commit_index)
        if previous < commit_index:
            # Committed entries agree with every later leader's log, whether or not they are still stored.
            entries = entries[commit_index - previous :]
        elif log.term_at(previous) != message.previous_term:
            hint = log.last_at_most(min(previous - 1, log.last_index), message.previous_term)
            hint_term = log.term_at(hint)
            assert hint_term is not None
            group.send(sender, AppendReply(group.term, previous, None, hint, hint_term))
            return
        self.store(entries)
        group.send(sender, AppendReply(group.term, previous, match))
        group.state.learn_commit(min(message.commit, match))

    def store(self, entries: tuple[LogEntry, ...]) -> None:
        """Only a contradiction removes entries: an old Append must not undo what a newer one has added."""
        group = self._group
        log = group.log
        for entry in entries:
            if entry.index <= log.last_index:
                if log.term_at(entry.index) == entry.term:
                    continue
                self.truncate(entry.index)
            log.append(entry)
            if entry.kind is Kind.CONFIGURATION:
                group.membership.adopt(entry)
        group.touch()

    def truncate(self, index: int) -> None:
        """Entries from `index` on contradict the leader's log: they were never committed."""
        group = self._group
        if index <= group.state.commit_index:
            raise InvariantBroken(f"entry {index} of {group.id} is committed and would be taken back")
        group.log.truncate_from(index)
        group.membership.truncate(index)
        group.persistence.truncated(index)
        group.touch()

    def on_install_snapshot(self, sender: MemberId, message: InstallSnapshot) -> None:
        group = self._group
        snapshot = message.snapshot
        before_start = snapshot.start_index - 1
        if before_start > group.state.commit_index:
            if group.log.term_at(before_start) == snapshot.previous_term:
                group.state.learn_commit(before_start)
            else:
                group.state.install(snapshot)
        group.send(sender, AppendReply(group.term, before_start, max(before_start, group.state.commit_index)))
