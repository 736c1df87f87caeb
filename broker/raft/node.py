"""All groups of one broker, driven by one loop: the face of the core towards its driver.

    node.step(event, now) …          any number of times: frames, requests, finished rounds
    round = node.drain()             what all groups want done, to be written with one fsync (see `effects`)
    node.next_due()                  when to call step(None, now) if nothing else happens

`now` is a clock that never goes back, in ms; the calendar comes only inside requests that need it. Deadlines that are
due are looked at before the event itself: a process that was stopped for a while resigns before it acts on what it
finds in its buffers. The same seed, session and sequence of steps give the same rounds, bit for bit.
"""

from typing import NamedTuple

from broker.raft.effects import Resolved, Round, Send
from broker.raft.events import Event, NotLeader, Propose, Read, Reconfigure, Retain
from broker.raft.group import Group
from broker.raft.identity import GroupId, Member
from broker.raft.messages import Envelope, Frame, Heartbeat, HeartbeatReply, Row, RowKey
from broker.raft.peers import Peer
from broker.raft.settings import Settings
from broker.raft.snapshot import Stored
from broker.raft.surroundings import Surroundings

_HEARTBEAT = ("heartbeat", 0)


class Durable(NamedTuple):
    """All rounds up to this number are on disk."""

    round: int


class Request(NamedTuple):
    group: GroupId
    event: Event


NodeEvent = Frame | Durable | Request | None


class Node:
    """`session` is new for every start of the process; `group_type` lets the simulator plant bugs."""

    def __init__(
        self,
        broker_id: int,
        session: int,
        seed: int,
        now: int,
        settings: Settings | None = None,
        group_type: type[Group] = Group,
    ) -> None:
        self.broker_id = broker_id
        self.session = session
        self.settings = settings or Settings()
        self.groups: dict[GroupId, Group] = {}
        self._around = Surroundings(self.settings, seed, now)
        self._group_type = group_type
        self._unsynced: dict[int, list[Group]] = {}  # by round
        self._around.deadlines.plan(_HEARTBEAT, now)

    # Groups come and go

    def open(self, group_id: GroupId, me: Member, stored: Stored) -> Group:
        """Start a replica. The driver has made sure that `me` may answer for this group."""
        group = self._group_type(group_id, me, stored, self._around)
        self.groups[group_id] = group
        group.restore(stored.entries)
        group.expect_leader()
        # A leader may have told us of this group before we had it.
        for peer in self._around.peers.values():
            row = peer.held.get(group.row_key(me))
            if row is not None:
                self._follow(peer, group.row_key(me), row)
        return group

    def close(self, group_id: GroupId) -> None:
        """Forget a replica: its topic is deleted or it was moved away."""
        group = self.groups.pop(group_id, None)
        if group is None:
            return
        group.withdraw(0)
        group.become_follower(group.term, None)
        self._around.deadlines.forget(group_id)
        self._around.touched.pop(group_id, None)

    # Steps

    def step(self, event: NodeEvent, now: int) -> None:
        self._advance(now)
        if isinstance(event, Envelope):
            group = self.groups.get(event.group)
            # Addressed to an incarnation this broker no longer is, or not yet: nobody here may answer for it.
            if group is not None and group.me == event.to:
                group.receive(event.sender, event.message)
        elif isinstance(event, Request):
            self._request(event)
        elif isinstance(event, Durable):
            self._durable(event.round)
        elif isinstance(event, Heartbeat):
            self._heartbeat(event)
        elif isinstance(event, HeartbeatReply):
            self._heartbeat_reply(event)

    def next_due(self) -> int | None:
        return self._around.deadlines.next_due()

    def drain(self) -> Round:
        around = self._around
        saved: list[Group] = []
        for group_id in list(around.touched):
            group = self.groups[group_id]
            group.flush()
            if group.saved_round == around.round.number:
                saved.append(group)
        around.touched.clear()
        finished = around.round
        if saved:
            self._unsynced[finished.number] = saved
        elif not self._unsynced:
            around.durable = finished.number  # nothing is owed to the disk
        around.round = Round(finished.number + 1)
        return finished

    def _advance(self, now: int) -> None:
        around = self._around
        around.now = max(around.now, now)
        while (key := around.deadlines.pop(around.now)) is not None:
            if isinstance(key, GroupId):
                group = self.groups.get(key)
                if group is not None:
                    group.on_time()
            elif key == _HEARTBEAT:
                self._beat()
            elif key[0] == "heard":
                self._check_heard(around.peer(key[1]))
            else:
                self._check_contact(around.peer(key[1]))

    def _request(self, request: Request) -> None:
        group = self.groups.get(request.group)
        if group is not None:
            group.request(request.event)
        elif isinstance(request.event, Propose | Retain | Read | Reconfigure):
            self._around.round.resolved.append(Resolved(request.group, request.event.request, NotLeader(None)))

    def _durable(self, number: int) -> None:
        around = self._around
        around.durable = max(around.durable, number)
        for round_number in [n for n in self._unsynced if n <= number]:
            for group in self._unsynced.pop(round_number):
                if self.groups.get(group.id) is group:
                    group.on_durable(round_number)

    # Heartbeats

    def _beat(self) -> None:
        around = self._around
        for group in around.rows_due.values():
            for member, progress in group.progress.items():
                row = Row(group.me.incarnation, group.term, min(progress.match, group.commit))
                around.peer(member.broker_id).set_row(group.row_key(member), row)
        around.rows_due.clear()
        for peer in around.peers.values():
            frame = peer.heartbeat(self.broker_id, self.session, around.now)
            if frame is not None:
                around.round.sends.append(Send(peer.broker_id, frame, 0))
        around.deadlines.plan(_HEARTBEAT, around.now + self.settings.heartbeat_ms)

    def _meets(self, peer: Peer, session: int) -> bool:
        now = self._around.now
        if peer.is_stale(session, now, self.settings.election_min_ms):
            return False
        if session != peer.session:
            first_time = peer.session is None
            for key in peer.meet(session, now):
                group = self.groups.get(key.group)
                if group is not None:
                    group.leader_gone(peer.broker_id)
            if not first_time:
                self._resume(peer)
        return True

    def _heartbeat(self, frame: Heartbeat) -> None:
        around = self._around
        peer = around.peer(frame.broker_id)
        if not self._meets(peer, frame.session):
            return
        peer.heard_at = around.now
        for key, row in peer.take(frame):
            if row is not None:
                self._follow(peer, key, row)
            elif (group := self.groups.get(key.group)) is not None and group.me.incarnation == key.incarnation:
                group.leader_gone(peer.broker_id)
        if peer.silent:
            peer.silent = False
            for key, row in list(peer.held.items()):
                self._follow(peer, key, row)
        around.deadlines.plan(("heard", peer.broker_id), around.now + self.settings.election_min_ms)
        refused = tuple(peer.not_followed.items())
        reply = HeartbeatReply(self.broker_id, self.session, frame.session, frame.sent_at, peer.held_version, refused)
        # A refusal speaks of terms, and a term is spoken of only when it is on disk.
        gate = around.round.number if refused else 0
        around.round.sends.append(Send(peer.broker_id, reply, gate))

    def _follow(self, peer: Peer, key: RowKey, row: Row) -> None:
        group = self.groups.get(key.group)
        if group is None or group.me.incarnation != key.incarnation:
            peer.not_followed[key] = 0
        elif group.attested(Member(peer.broker_id, row.leader_incarnation), row.term, row.commit):
            peer.not_followed.pop(key, None)
        else:
            peer.not_followed[key] = group.term

    def _check_heard(self, peer: Peer) -> None:
        due = (peer.heard_at or 0) + self.settings.election_min_ms
        if due > self._around.now:
            self._around.deadlines.plan(("heard", peer.broker_id), due)
            return
        peer.silent = True
        for key in peer.held:
            group = self.groups.get(key.group)
            if group is not None and group.attested_by == peer.broker_id:
                group.leader_silent()

    def _heartbeat_reply(self, frame: HeartbeatReply) -> None:
        around = self._around
        peer = around.peer(frame.broker_id)
        if frame.to_session != self.session or not self._meets(peer, frame.session):
            return
        if peer.answered_at is not None and frame.sent_at < peer.answered_at:
            return  # overtaken by a newer answer
        peer.answered_at = frame.sent_at
        peer.confirm(frame.version)
        if frame.refused or peer.not_supported:
            for key, term in peer.refusals(frame):
                led = around.led.get(key.group)
                if led is not None:
                    self.groups[key.group].row_refused(term)
        due = peer.answered_at + self.settings.lease_ms
        if not peer.contact and due > around.now:
            peer.contact = True
            self._resume(peer)
        around.deadlines.plan(("contact", peer.broker_id), due)

    def _check_contact(self, peer: Peer) -> None:
        due = (peer.answered_at or 0) + self.settings.lease_ms
        if due > self._around.now:
            self._around.deadlines.plan(("contact", peer.broker_id), due)
            return
        peer.contact = False
        for group_id in list(self._around.led):
            group = self.groups[group_id]
            if any(member.broker_id == peer.broker_id for member in group.progress):
                group.check_quorum()

    def _resume(self, peer: Peer) -> None:
        """The peer is back or has restarted: send again what it has not confirmed."""
        for group_id in self._around.led:
            self.groups[group_id].resume(peer.broker_id)
