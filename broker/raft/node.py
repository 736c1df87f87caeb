"""All groups of one broker, driven by one loop: the interface of the core to its driver.

    node.step(event, now) …          any number of times: frames, requests, finished rounds
    round = node.drain()             the effects of all groups, to be written with one sync (see `effects`)
    node.next_due()                  when to call step(None, now) if nothing else happens

`now` is a monotonic clock in ms; calendar time comes only inside requests that need it. Deadlines that are due are
handled before the event itself: a process that was stopped for a while resigns before it handles buffered frames. The
same seed, session and sequence of steps give the same rounds, bit for bit.
"""

from dataclasses import replace
from itertools import takewhile
from typing import NamedTuple

from broker.raft.configuration import GroupId, MemberId
from broker.raft.context import COMMITS, InvariantBroken, RaftContext, RaftSettings
from broker.raft.effects import RaftRound, Resolved, Send
from broker.raft.entry import Kind
from broker.raft.events import AdvanceLogStart, Event, NotGroupLeader, Propose, Read, Reconfigure
from broker.raft.group import RaftGroup
from broker.raft.heartbeats import PeerHeartbeats
from broker.raft.messages import NO_REPLY, Append, Envelope, Frame, Heartbeat, HeartbeatReply, Row, RowKey
from broker.raft.progress import Progress
from broker.raft.snapshot import Stored

_HEARTBEAT = ("heartbeat", 0)


class Durable(NamedTuple):
    """All rounds up to this number are on disk."""

    round: int


class DiskSpace(NamedTuple):
    """Whether this broker's disk is below the low mark: leaders here and elsewhere then count it as full."""

    low: bool


class GroupRequest(NamedTuple):
    group: GroupId
    event: Event


NodeEvent = Frame | Durable | DiskSpace | GroupRequest | None


class Node:
    """`session` is new for every start of the process; `group_type` and `peer_type` let the simulator plant bugs."""

    peer_type = PeerHeartbeats

    def __init__(
        self,
        broker_id: int,
        session: int,
        seed: int,
        now: int,
        settings: RaftSettings | None = None,
        group_type: type[RaftGroup] = RaftGroup,
    ) -> None:
        self.broker_id = broker_id
        self.session = session
        self.settings = settings or RaftSettings()
        self.groups: dict[GroupId, RaftGroup] = {}
        self._context = RaftContext(self.settings, seed, now, self.peer_type)
        self._group_type = group_type
        self._unsynced: dict[int, list[RaftGroup]] = {}  # by round
        self._context.deadlines.plan(_HEARTBEAT, now)

    # Groups

    def open(self, group_id: GroupId, me: MemberId, stored: Stored) -> RaftGroup:
        """Start a replica. The driver has made sure that `me` may answer for this group."""
        if group_id in self.groups:
            raise InvariantBroken(f"a replica of {group_id} is open already")
        group = self._group_type(group_id, me, stored, self._context)
        self.groups[group_id] = group
        # A heartbeat may have named this group before it was opened here.
        for peer in self._context.peers.values():
            row = peer.held.get(group.row_key(me))
            if row is not None:
                self._follow(peer, group.row_key(me), row)
        return group

    def close(self, group_id: GroupId) -> None:
        """Its topic is deleted, or the replica was moved away."""
        group = self.groups.pop(group_id, None)
        if group is None:
            return
        group.election.withdraw(0)
        group.become_follower(group.term, None)
        self._context.deadlines.forget(group_id)
        self._context.touched.pop(group_id, None)
        self._context.barred.pop(group_id, None)

    # Steps

    def step(self, event: NodeEvent, now: int) -> None:
        self._advance(now)
        if isinstance(event, Envelope):
            group = self.groups.get(event.group)
            # Addressed to an incarnation this broker no longer is, or not yet: no replica here may answer for it.
            if group is not None and group.me == event.to:
                group.receive(event.sender, event.message)
        elif isinstance(event, GroupRequest):
            self._request(event)
        elif isinstance(event, Durable):
            self._durable(event.round)
        elif isinstance(event, Heartbeat):
            self._heartbeat(event)
        elif isinstance(event, HeartbeatReply):
            self._heartbeat_reply(event)
        elif isinstance(event, DiskSpace):
            self._disk_space(event)

    def refuse(self, envelope: Envelope, now: int) -> None:
        """Instead of `step` while this disk has no room: messages of an Append are refused, not stored.

        Everything else is handled as usual, also the retention cuts and configurations that an Append begins with:
        that is how room comes back.
        """
        message = envelope.message
        if not isinstance(message, Append):
            self.step(envelope, now)
            return
        fitting = tuple(takewhile(lambda entry: entry.kind is not Kind.MESSAGES, message.entries))
        if fitting or not message.entries:
            self.step(envelope._replace(message=replace(message, entries=fitting)), now)
        else:
            self._advance(now)
        group = self.groups.get(envelope.group)
        if len(fitting) < len(message.entries) and group is not None and group.me == envelope.to:
            group.refuse(envelope.sender, message)

    def next_due(self) -> int | None:
        return self._context.deadlines.next_due()

    def drain(self) -> RaftRound:
        context = self._context
        saved: list[RaftGroup] = []
        for group_id in list(context.touched):
            group = self.groups[group_id]
            group.flush()
            if group.persistence.saved_round == context.round.number:
                saved.append(group)
        context.touched.clear()
        finished = context.round
        if saved:
            self._unsynced[finished.number] = saved
        elif not self._unsynced:
            context.durable = finished.number  # no round is at the disk
        context.round = RaftRound(finished.number + 1)
        return finished

    def _advance(self, now: int) -> None:
        context = self._context
        context.now = max(context.now, now)
        while (key := context.deadlines.pop(context.now)) is not None:
            if isinstance(key, GroupId):
                group = self.groups.get(key)
                if group is not None:
                    group.on_time()
            elif key == _HEARTBEAT:
                self._beat()
            elif key == COMMITS:
                self._send_commits()
            elif key[0] == "silence":
                self._check_silence(context.peer(key[1]))
            else:
                self._check_contact(context.peer(key[1]))

    def _request(self, request: GroupRequest) -> None:
        group = self.groups.get(request.group)
        if group is not None:
            group.request(request.event)
        elif isinstance(request.event, Propose | AdvanceLogStart | Read | Reconfigure):
            self._context.round.resolved.append(Resolved(request.group, request.event.request, NotGroupLeader(None)))

    def _disk_space(self, event: DiskSpace) -> None:
        context = self._context
        if event.low and not context.disk_low:
            for group_id in context.led:
                # Disks often become full together: first the others' answers, so that no full broker is chosen.
                self.groups[group_id].membership.plan_step_down(2 * self.settings.heartbeat_ms)
        context.disk_low = event.low

    def _durable(self, number: int) -> None:
        context = self._context
        context.durable = max(context.durable, number)
        for round_number in [n for n in self._unsynced if n <= number]:
            for group in self._unsynced.pop(round_number):
                if self.groups.get(group.id) is group:
                    group.on_durable(round_number)

    # Heartbeats

    def _beat(self) -> None:
        context = self._context
        for group_id in context.rows_due:
            group = self.groups[group_id]
            commit_index = group.state.commit_index
            for member, progress in group.replication.progress.items():
                row = Row(group.me.incarnation, group.term, self.commit_for(progress, commit_index))
                context.peer(member.broker_id).set_row(group.row_key(member), row)
        context.rows_due.clear()
        for peer in context.peers.values():
            frame = peer.heartbeat(self.broker_id, self.session, context.now)
            if frame is not None:
                context.round.sends.append(Send(peer.broker_id, frame, 0))
        context.deadlines.plan(_HEARTBEAT, context.now + self.settings.heartbeat_ms)

    def _send_commits(self) -> None:
        """One frame for a peer and all groups, and only for what no Append has carried meanwhile."""
        context = self._context
        peers: dict[int, None] = {}
        for group_id in context.commits_due:
            group = self.groups[group_id]
            commit_index = group.state.commit_index
            for member, progress in group.replication.progress.items():
                commit = self.commit_for(progress, commit_index)
                if commit > progress.commit and context.peer(member.broker_id).contact:
                    progress.commit = commit
                    row = Row(group.me.incarnation, group.term, commit)
                    context.peer(member.broker_id).set_row(group.row_key(member), row)
                    peers[member.broker_id] = None
        context.commits_due.clear()
        for broker_id in peers:
            frame = context.peer(broker_id).news(self.broker_id, self.session)
            if frame is not None:
                context.round.sends.append(Send(broker_id, frame, 0))

    def commit_for(self, progress: Progress, commit_index: int) -> int:
        """Beyond what a follower has confirmed its log may hold other entries."""
        return min(progress.match, commit_index)

    def _accepts_session(self, peer: PeerHeartbeats, session: int) -> bool:
        now = self._context.now
        if peer.is_stale(session, now, self.settings.election_min_ms):
            return False
        if session != peer.session:
            first_time = peer.session is None
            for key in peer.start_session(session, now):
                group = self.groups.get(key.group)
                if group is not None:
                    group.election.on_leader_gone(peer.broker_id)
            if not first_time:
                self._resume(peer)
        return True

    def _heartbeat(self, frame: Heartbeat) -> None:
        context = self._context
        peer = context.peer(frame.broker_id)
        if not self._accepts_session(peer, frame.session):
            return
        peer.received_at = context.now
        for key, row in peer.take(frame):
            if row is not None:
                self._follow(peer, key, row)
            elif (group := self.groups.get(key.group)) is not None and group.me.incarnation == key.incarnation:
                group.election.on_leader_gone(peer.broker_id)
        if peer.silent:
            peer.silent = False
            for key, row in list(peer.held.items()):
                self._follow(peer, key, row)
        context.deadlines.plan(("silence", peer.broker_id), context.now + self.settings.election_min_ms)
        if frame.sent_at == NO_REPLY:
            return
        refused = tuple(peer.not_followed.items())
        sessions = (self.broker_id, self.session, frame.session)
        barred = tuple(key for key in context.barred.values() if key in peer.held)
        reply = HeartbeatReply(*sessions, frame.sent_at, peer.held_version, refused, context.disk_low, barred)
        # A refusal carries terms, and a term may be sent only when it is on disk.
        gate = context.round.number if refused else 0
        context.round.sends.append(Send(peer.broker_id, reply, gate))

    def _follow(self, peer: PeerHeartbeats, key: RowKey, row: Row) -> None:
        group = self.groups.get(key.group)
        if group is None or group.me.incarnation != key.incarnation:
            peer.not_followed[key] = 0
        elif group.election.on_leader_heartbeat(MemberId(peer.broker_id, row.leader_incarnation), row.term, row.commit):
            peer.not_followed.pop(key, None)
        else:
            peer.not_followed[key] = group.term

    def _check_silence(self, peer: PeerHeartbeats) -> None:
        due = (peer.received_at or 0) + self.settings.election_min_ms
        if due > self._context.now:
            self._context.deadlines.plan(("silence", peer.broker_id), due)
            return
        peer.silent = True
        for key in peer.held:
            group = self.groups.get(key.group)
            if group is not None and group.election.leader_broker_id == peer.broker_id:
                group.election.on_leader_silent()

    def _heartbeat_reply(self, frame: HeartbeatReply) -> None:
        context = self._context
        peer = context.peer(frame.broker_id)
        if frame.to_session != self.session or not self._accepts_session(peer, frame.session):
            return
        if peer.answered_at is not None and frame.sent_at < peer.answered_at:
            return  # overtaken by a newer answer
        peer.answered_at = frame.sent_at
        peer.confirm(frame.version)
        if frame.refused or peer.not_supported:
            for key, term in peer.refusals(frame):
                if key.group in context.led:
                    self.groups[key.group].election.on_row_refused(term)
        had_room, peer.disk_low = not peer.disk_low, frame.disk_low
        peer.barred = frame.barred
        due = peer.answered_at + self.settings.lease_ms
        is_back = not peer.contact and due > context.now
        if is_back:
            peer.contact = True
        if is_back or not (had_room or peer.disk_low):
            self._resume(peer)
        context.deadlines.plan(("contact", peer.broker_id), due)

    def _check_contact(self, peer: PeerHeartbeats) -> None:
        due = (peer.answered_at or 0) + self.settings.lease_ms
        if due > self._context.now:
            self._context.deadlines.plan(("contact", peer.broker_id), due)
            return
        peer.contact = False
        for group_id in list(self._context.led):
            group = self.groups[group_id]
            if any(member.broker_id == peer.broker_id for member in group.replication.progress):
                group.election.check_quorum()

    def _resume(self, peer: PeerHeartbeats) -> None:
        """The peer is back, has restarted or has room again: resend everything it has not confirmed."""
        for group_id in self._context.led:
            self.groups[group_id].replication.resume(peer.broker_id)
