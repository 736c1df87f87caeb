"""Tables of leaders kept alike on two brokers, whatever the network does with the frames."""

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from broker.raft.configuration import GroupId
from broker.raft.heartbeats import PeerHeartbeats
from broker.raft.messages import NO_REPLY, Heartbeat, Row, RowKey

KEYS = [RowKey(GroupId(UUID(int=1), n), 1) for n in range(4)]
MOVES = st.lists(
    st.tuples(
        st.sampled_from(["set", "remove", "beat", "news", "deliver", "deliver", "answer", "reboot"]), st.integers(0, 9)
    ),
    max_size=80,
)


@given(MOVES)
def test_tables_become_equal(moves: list[tuple[str, int]]) -> None:
    sender, receiver = PeerHeartbeats(2), PeerHeartbeats(1)
    receiver.start_session(1, 0)
    session = 100
    sender.start_session(session, 0)
    frames: list[Heartbeat] = []
    answers: list[tuple[int, int, int]] = []
    time = answered = 0

    def beat() -> None:
        frame = sender.heartbeat(1, 1, time)
        if frame is not None:
            frames.append(frame)

    def deliver(frame: Heartbeat) -> None:
        receiver.take(frame)
        if frame.sent_at != NO_REPLY:
            answers.append((session, frame.sent_at, receiver.held_version))

    def answer(from_session: int, sent_at: int, version: int) -> None:
        nonlocal answered
        if sender.is_stale(from_session, time, 1000):
            return
        if from_session != sender.session:
            sender.start_session(from_session, time)
        if sent_at >= answered:
            answered = sent_at
            sender.confirm(version)

    for move, number in moves:
        time += 1
        if move == "set":
            sender.set_row(KEYS[number % 4], Row(1, number, number))
        elif move == "remove":
            sender.remove_row(KEYS[number % 4])
        elif move == "beat":
            beat()
        elif move == "news" and (news := sender.news(1, 1)) is not None:
            frames.append(news)
        elif move == "deliver" and frames:
            deliver(frames[number % len(frames)])  # any of them, again and again, in any order
        elif move == "answer" and answers:
            answer(*answers[number % len(answers)])
        elif move == "reboot":
            receiver = PeerHeartbeats(1)
            receiver.start_session(1, time)
            session += 1
    sender.set_row(KEYS[0], Row(1, 99, 99))  # an empty table needs no frames
    for _ in range(6):
        time += 2000
        beat()
        deliver(frames[-1])
        answer(*answers[-1])
    assert receiver.held == sender.rows
    assert not sender.changes
    assert not sender.introduced
