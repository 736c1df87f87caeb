"""The partitions that a consumer has on lease, and its offsets in each of them.

No threads, no IO; the caller locks. In every partition

    committed <= handled <= position <= fetched

A commit may go up to `handled`; `position` is the next offset to hand out, `fetched` the next one to fetch. Messages
that were handed out are in flight until the application's next call, which marks them as handled.

A partition that is being revoked is released when nothing of it is in flight. Where the application commits, or has
callbacks, it is released only inside the application's next call, after `on_revoke` has returned.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from myqueue.decoding import Chunk, Messages
from myqueue.protocol.errors import MyQueueError

_EPOCH_SHIFT = 32  # of a generation: the write manager's epoch is above, a counter below


@dataclass(frozen=True, slots=True)
class PartitionLease:
    partition: int
    generation: int
    cursor: int
    revoking: bool


class PartitionState:
    def __init__(self, partition: int, generation: int, cursor: int, leased_until: float) -> None:
        self.partition = partition
        self.generation = generation
        self.leased_until = leased_until
        self.revoking = False
        self.announced = True  # the application knows that it has the partition
        self.given_up = False  # the application knows that it goes: it may be released
        self.chunks: deque[Chunk] = deque()
        self.buffered = 0  # bytes
        self.gap: MyQueueError | None = None  # messages are missing, and the application asked for an error
        self.fetching = False
        self.failures = 0  # of fetching, in a row
        self.retry_at = 0.0
        self.resets = 0
        self.committed = self.handled = self.position = self.fetched = cursor

    def reset(self, offset: int) -> None:
        """Continues at this offset, after a seek or a rebalance."""
        self.committed = self.handled = self.position = self.fetched = offset
        self.chunks.clear()
        self.buffered = 0
        self.gap = None
        self.resets += 1

    def drop_prefetched(self) -> None:
        """Messages that were fetched but not handed out are fetched again."""
        self.chunks.clear()
        self.buffered = 0
        self.fetched = self.position


# Changes when reading begins anew: after a seek, or when another member had the partition meanwhile.
LeaseIdentity = tuple[PartitionState, int]


def lease_identity(state: PartitionState) -> LeaseIdentity:
    return state, state.resets


class InFlight:
    """A chunk that was handed out: as a whole, or as messages of which the application has taken some."""

    __slots__ = ("chunk", "messages", "size", "state", "subscription")

    def __init__(
        self, subscription: "SubscriptionState", state: PartitionState, chunk: Chunk, messages: Messages | None
    ) -> None:
        self.subscription = subscription
        self.state = state
        self.chunk = chunk
        self.messages = messages
        self.size = chunk.count

    @property
    def taken(self) -> int:
        return self.size - (0 if self.messages is None else self.messages.left)

    @property
    def position(self) -> int:
        return self.chunk.first + self.taken

    def cut(self) -> None:
        """Hands out no more than the application has taken."""
        if self.messages is not None:
            self.size -= self.messages.cut()


class SubscriptionState:
    def __init__(self, topic: str = "", *, auto_commit: bool = True, has_callbacks: bool = False) -> None:
        self.topic = topic
        self._auto_commit = auto_commit
        self.has_callbacks = has_callbacks
        self.seeking = 0  # seeks of the application that wait for their answer
        self._lost: list[int] = []  # partitions, to be announced
        self.known = False  # whether the first leases have arrived
        self.paused: set[int] = set()  # partitions that are fetched, but not handed out
        self._states: dict[int, PartitionState] = {}
        self._in_flight: list[InFlight] = []
        self._round_robin: deque[int] = deque()  # partitions, longest waiting first

    def __iter__(self) -> Iterator[PartitionState]:
        return iter(self._states.values())

    def __len__(self) -> int:
        return len(self._states)

    def get(self, partition: int) -> PartitionState | None:
        return self._states.get(partition)

    # Leases

    def renew(self, leases: list[PartitionLease], requested_at: float, lease_s: float) -> None:
        """Takes over all leases as the write manager lists them: a rebalance adds and revokes some."""
        self.known = True
        leased_until = requested_at + lease_s
        if leases:
            listed = {lease.partition for lease in leases}
            for partition in [partition for partition in self._states if partition not in listed]:
                self.lose(partition)
        else:
            self._suspend(requested_at, lease_s)
        for lease in leases:
            state = self._states.get(lease.partition)
            if state is None:
                if lease.revoking:
                    continue  # released already; this response is older
                state = PartitionState(lease.partition, lease.generation, lease.cursor, leased_until)
                state.announced = not self.has_callbacks
                self._states[lease.partition] = state
                self._round_robin.append(lease.partition)
                continue
            if lease.generation < state.generation:
                continue  # older than a seek
            if lease.generation > state.generation:
                # A new write manager granted the lease again, and the cursor is where this consumer left it, or where a
                # commit without an answer may have left it: go on. Otherwise the consumer was sought, or another member
                # had the partition meanwhile.
                same_manager = lease.generation >> _EPOCH_SHIFT == state.generation >> _EPOCH_SHIFT
                if same_manager or not state.committed <= lease.cursor <= self.positions()[lease.partition]:
                    self._drop_in_flight(state)
                    state.reset(lease.cursor)
                    if not self.seeking:
                        self._announce_loss(state)
                state.committed = lease.cursor
                state.handled = max(state.handled, lease.cursor)
                state.generation = lease.generation
            state.leased_until = max(state.leased_until, leased_until)
            if lease.revoking and not state.revoking:
                self._recall(state)
                state.drop_prefetched()
            elif state.given_up and not lease.revoking:
                self._take_again(state)
            state.revoking = lease.revoking
        if self.is_rebalance_due():
            self.recall_in_flight()  # the application's next message is behind its callbacks

    def keep(self, requested_at: float, lease_s: float) -> None:
        """Nothing can decide about leases right now, so no other member gets them either: go on with those that had
        not expired when the renewal was sent. If one went away all the same, its next commit is refused."""
        for state in self._states.values():
            if state.leased_until > requested_at:
                state.leased_until = max(state.leased_until, requested_at + lease_s)

    def _suspend(self, now: float, lease_s: float) -> None:
        """A new write manager lists no leases at first: hand out nothing, and wait a while before all are lost."""
        for state in list(self._states.values()):
            if state.leased_until > now:
                state.leased_until = now
            elif now > state.leased_until + 2 * lease_s:
                self.lose(state.partition)
        self.expire(now)

    def lose(self, partition: int) -> None:
        state = self._states.pop(partition, None)
        if state is not None:
            self._drop_in_flight(state)
            self._round_robin.remove(partition)
            self.paused.discard(partition)
            self._announce_loss(state)

    def expire(self, now: float) -> None:
        """Stops handing out partitions whose lease was not renewed in time: another member may have them."""
        for state in self._states.values():
            if state.leased_until <= now and (state.chunks or self._in_flight):
                self._recall(state)
                state.drop_prefetched()

    def to_release(self) -> list[int]:
        """Partitions that are being revoked and have nothing in flight."""
        busy = {id(handed.state) for handed in self._in_flight}
        at_once = self._auto_commit and not self.has_callbacks
        return [
            state.partition
            for state in self._states.values()
            if state.revoking and (at_once or state.given_up) and id(state) not in busy
        ]

    def seek(self, partition: int, offset: int, generation: int) -> None:
        state = self._states.get(partition)
        if state is not None and generation >= state.generation:
            self._drop_in_flight(state)
            state.generation = generation
            state.reset(offset)

    def next_expiry(self, now: float) -> float | None:
        """When the first lease expires."""
        return min((state.leased_until for state in self._states.values() if state.leased_until > now), default=None)

    # Rebalances, as the application gets to know of them

    def is_rebalance_due(self) -> bool:
        """Whether a callback is to be called before the next message is handed out."""
        return self.has_callbacks and (
            bool(self._lost)
            or any(not state.given_up if state.revoking else not state.announced for state in self._states.values())
        )

    def take_lost(self) -> list[int]:
        lost, self._lost = self._lost, []
        return lost

    def take_revoked(self) -> list[PartitionState]:
        """Partitions that are being revoked, to be announced; `give_up` follows. Inside the application's call only."""
        revoked = [state for state in self._states.values() if state.revoking and not state.given_up]
        for state in revoked:
            if not state.announced:
                state.given_up = True  # it came and goes between two calls
        announced = [state for state in revoked if state.announced]
        for state in announced:
            state.announced = False
        return announced

    def give_up(self, states: Iterable[PartitionState]) -> None:
        """The application is done with them."""
        for state in states:
            state.given_up = True
            if not state.revoking:  # withdrawn meanwhile
                self._take_again(state)

    def take_assigned(self) -> list[int]:
        """Partitions that the application does not know yet, and are announced now."""
        assigned = [state for state in self._states.values() if not state.announced and not state.revoking]
        for state in assigned:
            state.announced = True
        return [state.partition for state in assigned]

    def _take_again(self, state: PartitionState) -> None:
        """The revocation was withdrawn. What the application gave up without a commit is handed out again."""
        state.given_up = False
        if self.has_callbacks and not self._auto_commit:
            self._drop_in_flight(state)
            state.reset(state.committed)

    def _announce_loss(self, state: PartitionState) -> None:
        if self.has_callbacks and state.announced:
            state.announced = False
            self._lost.append(state.partition)

    # Fetching

    def next_to_fetch(self, now: float, share: int) -> PartitionState | None:
        """The longest waiting partition that no thread fetches and whose buffer is below `share` bytes."""
        for partition in self._round_robin:
            state = self._states[partition]
            if (
                not state.fetching
                and not state.revoking
                and state.gap is None
                and state.buffered < share
                and state.retry_at <= now < state.leased_until
            ):
                self._round_robin.remove(partition)
                self._round_robin.append(partition)
                state.fetching = True
                return state
        return None

    def next_retry(self, now: float) -> float | None:
        """When a partition that waits after a failure may be fetched again."""
        return min(
            (state.retry_at for state in self._states.values() if not state.fetching and state.retry_at > now),
            default=None,
        )

    def is_current(self, state: PartitionState, offset: int) -> bool:
        """Whether the result of a fetch from this offset is still wanted."""
        current = self._states.get(state.partition) is state
        return current and state.fetched == offset and not state.revoking

    def put(self, state: PartitionState, offset: int, chunks: list[Chunk]) -> None:
        """Adds what was fetched from this offset, unless the partition moved on meanwhile."""
        if self.is_current(state, offset):
            for chunk in chunks:
                state.chunks.append(chunk)
                state.buffered += chunk.size
                state.fetched = chunk.end

    def skip_to(self, state: PartitionState, offset: int, beginning: int) -> int:
        """Skips messages that retention has deleted; how many."""
        if not self.is_current(state, offset) or beginning <= offset:
            return 0
        state.fetched = beginning
        if not state.chunks and not any(handed.state is state for handed in self._in_flight):
            state.position = state.handled = beginning
        return beginning - offset

    # Handing out

    def ready(self, now: float) -> bool:
        for state in self._states.values():  # noqa: SIM110 # for each batch: several times faster than any()
            if self._may_be_taken(state, now):
                return True
        return False

    def _may_be_taken(self, state: PartitionState, now: float) -> bool:
        return (
            bool(state.chunks) and state.announced and now < state.leased_until and state.partition not in self.paused
        )

    def fetched_all(self, ends: dict[int, int]) -> bool:
        """Whether nothing that may be handed out is left to fetch, where the partitions end there."""
        return all(
            state.revoking or state.partition in self.paused or state.fetched >= ends.get(state.partition, 0)
            for state in self._states.values()
        )

    def finish_in_flight(self) -> bool:
        """Marks the messages in flight as handled; whether a partition that is being revoked waited for that.

        Called inside the application's next call, and repeated while that waits.
        """
        waited_for = False
        if not self.has_callbacks and not self._auto_commit:
            for state in self._states.values():
                waited_for = waited_for or (state.revoking and not state.given_up)
                state.given_up = state.given_up or state.revoking
        for handed in self._in_flight:
            state = handed.state
            state.position = max(state.position, handed.position)
            state.handled = max(state.handled, handed.position)
            waited_for = waited_for or state.revoking
        self._in_flight.clear()
        return waited_for

    def take(self, now: float) -> tuple[PartitionState, Chunk] | None:
        """The next chunk, from the partitions in turn."""
        for partition in self._round_robin:
            state = self._states[partition]
            if self._may_be_taken(state, now):
                self._round_robin.remove(partition)
                self._round_robin.append(partition)
                chunk = state.chunks.popleft()
                state.buffered -= chunk.size
                return state, chunk
        return None

    def hand_out(self, state: PartitionState, chunk: Chunk, messages: Messages | None) -> InFlight:
        handed = InFlight(self, state, chunk, messages)
        self._in_flight.append(handed)
        if messages is None:
            state.position = chunk.end
        return handed

    def withdraw(self, handed: InFlight) -> bool:
        """Whether it was in flight; the caller decides where the partition's position is then."""
        if handed not in self._in_flight:
            return False
        self._in_flight.remove(handed)
        return True

    def progress(self) -> int:
        """Differs after the application has taken a message."""
        return sum(handed.position for handed in self._in_flight)

    def put_back(self, state: PartitionState, chunk: Chunk) -> None:
        state.chunks.appendleft(chunk)
        state.buffered += chunk.size

    def recall_in_flight(self) -> None:
        """Takes back messages in flight that the application has not taken, to hand them out in another form."""
        for handed in self._in_flight:
            if handed.taken < handed.size:
                handed.cut()
                self.put_back(handed.state, handed.chunk.rest(handed.size))

    def stop(self) -> None:
        for state in self._states.values():
            self._recall(state)
            state.drop_prefetched()

    def forget_in_flight(self) -> None:
        """They may be half processed: a commit of everything does not include them any more."""
        handled = self.handled(include_in_flight=False)
        self._in_flight.clear()
        for state in self._states.values():
            state.position = state.handled = handled[state.partition]

    # Committing

    def positions(self) -> dict[int, int]:
        """The next offset to hand out."""
        positions = {state.partition: state.position for state in self._states.values()}
        for handed in self._in_flight:
            partition = handed.state.partition
            positions[partition] = max(positions[partition], handed.position)
        return positions

    def handled(self, *, include_in_flight: bool) -> dict[int, int]:
        """How far each partition may be committed; `include_in_flight`: as if messages in flight were handled."""
        if include_in_flight:
            return self.positions()
        handled = {state.partition: state.handled for state in self._states.values()}
        for handed in self._in_flight:
            if handed.messages is not None and handed.taken > 0:  # all but the last one that was taken
                partition = handed.state.partition
                handled[partition] = max(handled[partition], handed.position - 1)
        return handled

    def committed(self, partition: int, offset: int, generation: int) -> None:
        state = self._states.get(partition)
        if state is not None and state.generation == generation:
            state.committed = max(state.committed, offset)
            state.handled = max(state.handled, offset)

    def _drop_in_flight(self, state: PartitionState) -> None:
        """Forgets the partition's messages in flight: they are not committed."""
        self._recall(state)
        self._in_flight = [handed for handed in self._in_flight if handed.state is not state]

    def _recall(self, state: PartitionState) -> None:
        """Stops handing out of this partition; messages that were taken stay in flight."""
        for handed in self._in_flight:
            if handed.state is state:
                handed.cut()
                state.position = max(state.position, handed.position)
