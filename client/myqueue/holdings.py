"""The partitions that a consumer has on lease: what is fetched, handed out, handled and committed of each.

Decides only: no threads, no IO; the caller locks. Of a partition's offsets

    committed <= handled <= position <= fetched

`handled` is where a commit may go, `position` the next one to hand out, `fetched` the next one to fetch. What the
reader got with its last call counts as handled when it asks for more.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from myqueue.decoding import Chunk, Messages
from myqueue.protocol.errors import MyQueueError

_EPOCH_SHIFT = 32  # of a generation: the write manager's epoch is above, a counter below


@dataclass(frozen=True, slots=True)
class Lease:
    partition: int
    generation: int
    cursor: int
    revoking: bool


class Holding:
    def __init__(self, partition: int, generation: int, cursor: int, held_until: float) -> None:
        self.partition = partition
        self.generation = generation
        self.held_until = held_until
        self.revoking = False
        self.chunks: deque[Chunk] = deque()
        self.buffered = 0  # bytes
        self.gap: MyQueueError | None = None  # messages are missing and the reader wants to know
        self.fetching = False
        self.failures = 0  # of fetching, in a row
        self.retry_at = 0.0
        self.restarts = 0
        self.committed = self.handled = self.position = self.fetched = cursor

    def restart(self, offset: int) -> None:
        """Nothing before this offset matters any more."""
        self.committed = self.handled = self.position = self.fetched = offset
        self.chunks.clear()
        self.buffered = 0
        self.gap = None
        self.restarts += 1

    def forget_ahead(self) -> None:
        """What was fetched and not handed out has to be fetched again."""
        self.chunks.clear()
        self.buffered = 0
        self.fetched = self.position


class InHand:
    """What the reader has got: messages of a chunk, of which it has taken some, or the whole chunk."""

    __slots__ = ("chunk", "holding", "messages", "size")

    def __init__(self, holding: Holding, chunk: Chunk, messages: Messages | None) -> None:
        self.holding = holding
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
        """The reader gets no more than it has taken."""
        if self.messages is not None:
            self.size -= self.messages.cut()


class Holdings:
    def __init__(self) -> None:
        self.known = False  # the first leases are told
        self._held: dict[int, Holding] = {}
        self._in_hand: list[InHand] = []
        self._turn: deque[int] = deque()  # partitions, whose turn it is first

    def __iter__(self) -> Iterator[Holding]:
        return iter(self._held.values())

    def __len__(self) -> int:
        return len(self._held)

    def get(self, partition: int) -> Holding | None:
        return self._held.get(partition)

    # Leases

    def renew(self, leases: list[Lease], asked_at: float, lease_s: float) -> None:
        """All leases as the cluster knows them."""
        self.known = True
        held_until = asked_at + lease_s
        if leases:
            told = {lease.partition for lease in leases}
            for partition in [partition for partition in self._held if partition not in told]:
                self.lose(partition)
        else:
            self._suspend(asked_at, lease_s)
        for lease in leases:
            holding = self._held.get(lease.partition)
            if holding is None:
                if lease.revoking:
                    continue  # given back already; the answer was on its way
                self._held[lease.partition] = Holding(lease.partition, lease.generation, lease.cursor, held_until)
                self._turn.append(lease.partition)
                continue
            if lease.generation < holding.generation:
                continue  # older than a seek
            if lease.generation > holding.generation:
                # Another write manager gave the lease anew, and the cursor stands where this consumer left it: it
                # simply goes on. Otherwise somebody sought, or had the partition meanwhile.
                same_manager = lease.generation >> _EPOCH_SHIFT == holding.generation >> _EPOCH_SHIFT
                if same_manager or lease.cursor != holding.committed:
                    self._let_go(holding)
                    holding.restart(lease.cursor)
                holding.generation = lease.generation
            holding.held_until = max(holding.held_until, held_until)
            if lease.revoking and not holding.revoking:
                self._take_back(holding)
                holding.forget_ahead()
            holding.revoking = lease.revoking

    def _suspend(self, now: float, lease_s: float) -> None:
        """A new write manager tells no leases at first: hands out nothing, and waits a little before all is lost."""
        for holding in list(self._held.values()):
            if holding.held_until > now:
                holding.held_until = now
            elif now > holding.held_until + 2 * lease_s:
                self.lose(holding.partition)
        self.expire(now)

    def lose(self, partition: int) -> None:
        holding = self._held.pop(partition, None)
        if holding is not None:
            self._let_go(holding)
            self._turn.remove(partition)

    def expire(self, now: float) -> None:
        """Leases that were not renewed in time may be somebody else's: hand out no more of them."""
        for holding in self._held.values():
            if holding.held_until <= now and (holding.chunks or self._in_hand):
                self._take_back(holding)
                holding.forget_ahead()

    def releasable(self) -> list[int]:
        """Partitions that another member waits for and of which the reader has nothing in hand."""
        busy = {id(hand.holding) for hand in self._in_hand}
        return [h.partition for h in self._held.values() if h.revoking and id(h) not in busy]

    def seek(self, partition: int, offset: int, generation: int) -> None:
        holding = self._held.get(partition)
        if holding is not None and generation >= holding.generation:
            self._let_go(holding)
            holding.generation = generation
            holding.restart(offset)

    def next_expiry(self, now: float) -> float | None:
        """When the first lease ends that is not renewed."""
        return min((h.held_until for h in self._held.values() if h.held_until > now), default=None)

    # Fetching

    def next_to_fetch(self, now: float, share: int) -> Holding | None:
        """A partition that nobody fetches and that has room for more: the one that waits longest."""
        for partition in self._turn:
            holding = self._held[partition]
            if (
                not holding.fetching
                and not holding.revoking
                and holding.gap is None
                and holding.buffered < share
                and holding.retry_at <= now < holding.held_until
            ):
                self._turn.remove(partition)
                self._turn.append(partition)
                holding.fetching = True
                return holding
        return None

    def next_retry(self, now: float) -> float | None:
        """When a partition that waits after a failure may be fetched again."""
        return min((h.retry_at for h in self._held.values() if not h.fetching and h.retry_at > now), default=None)

    def wants(self, holding: Holding, offset: int) -> bool:
        """Whether a fetch from this offset on still makes sense."""
        current = self._held.get(holding.partition) is holding
        return current and holding.fetched == offset and not holding.revoking

    def put(self, holding: Holding, offset: int, chunks: list[Chunk]) -> None:
        """What was fetched from this offset on; it counts only if nothing has happened to the partition meanwhile."""
        if self.wants(holding, offset):
            for chunk in chunks:
                holding.chunks.append(chunk)
                holding.buffered += chunk.size
                holding.fetched = chunk.end

    def skip_to(self, holding: Holding, offset: int, beginning: int) -> int:
        """Messages are gone by retention; how many."""
        if not self.wants(holding, offset) or beginning <= offset:
            return 0
        holding.fetched = beginning
        if not holding.chunks and not any(hand.holding is holding for hand in self._in_hand):
            holding.position = holding.handled = beginning
        return beginning - offset

    # Handing out

    def ready(self, now: float) -> bool:
        return any(holding.chunks and now < holding.held_until for holding in self._held.values())

    def finish_hand(self) -> bool:
        """The reader asks for more: what it had is handled. Whether that was waited for."""
        waited_for = False
        for hand in self._in_hand:
            holding = hand.holding
            holding.position = max(holding.position, hand.position)
            holding.handled = max(holding.handled, hand.position)
            waited_for = waited_for or holding.revoking
        self._in_hand.clear()
        return waited_for

    def take(self, now: float) -> tuple[Holding, Chunk] | None:
        """The next chunk of the partitions in turn."""
        for partition in self._turn:
            holding = self._held[partition]
            if holding.chunks and now < holding.held_until:
                self._turn.remove(partition)
                self._turn.append(partition)
                chunk = holding.chunks.popleft()
                holding.buffered -= chunk.size
                return holding, chunk
        return None

    def hand_out(self, holding: Holding, chunk: Chunk, messages: Messages | None) -> InHand:
        hand = InHand(holding, chunk, messages)
        self._in_hand.append(hand)
        if messages is None:
            holding.position = chunk.end
        return hand

    def put_back(self, holding: Holding, chunk: Chunk) -> None:
        holding.chunks.appendleft(chunk)
        holding.buffered += chunk.size

    def take_back_rest(self) -> None:
        """What was not taken of the messages in hand is there to be handed out in another form."""
        for hand in self._in_hand:
            if hand.taken < hand.size:
                hand.cut()
                self.put_back(hand.holding, hand.chunk.rest(hand.size))

    def stop(self) -> None:
        for holding in self._held.values():
            self._take_back(holding)
            holding.forget_ahead()

    # Committing

    def positions(self) -> dict[int, int]:
        """The next offset to hand out."""
        positions = {holding.partition: holding.position for holding in self._held.values()}
        for hand in self._in_hand:
            partition = hand.holding.partition
            positions[partition] = max(positions[partition], hand.position)
        return positions

    def handled(self, *, with_hand: bool) -> dict[int, int]:
        """How far each partition may be committed; `with_hand`: what the reader has in hand is handled, too."""
        if with_hand:
            return self.positions()
        handled = {holding.partition: holding.handled for holding in self._held.values()}
        for hand in self._in_hand:
            if hand.messages is not None and hand.taken > 0:  # all but the last one that was taken
                partition = hand.holding.partition
                handled[partition] = max(handled[partition], hand.position - 1)
        return handled

    def committed(self, partition: int, offset: int, generation: int) -> None:
        holding = self._held.get(partition)
        if holding is not None and holding.generation == generation:
            holding.committed = max(holding.committed, offset)
            holding.handled = max(holding.handled, offset)

    def _let_go(self, holding: Holding) -> None:
        """What the reader has in hand of this partition does not count any more."""
        self._take_back(holding)
        self._in_hand = [hand for hand in self._in_hand if hand.holding is not holding]

    def _take_back(self, holding: Holding) -> None:
        """Stops handing out of this partition; what the reader has stays in hand."""
        for hand in self._in_hand:
            if hand.holding is holding:
                hand.cut()
                holding.position = max(holding.position, hand.position)
