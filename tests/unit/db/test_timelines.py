"""Which servers have what a session token stands for, over any number of promotions."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from db.timelines import CurrentTimeline, ServerState, has_replayed
from myqueue.protocol.token import Token


@dataclass(frozen=True)
class Commit:
    token: Token  # what its client got: the position may be of later, unconfirmed records
    end: int  # of its own record


@dataclass(frozen=True)
class History:
    """Timelines 1, 2, …: each begins where the confirmed part of the one before ended."""

    begins: list[int]
    ends: list[int]  # where each was left by the next one, or the end of its log
    recorded: dict[int, int]  # the position that the row of an ended timeline has
    rows_at: dict[int, Token]  # where that row itself is in the log
    commits: list[Commit]

    def has(self, server: Token, commit: Commit) -> bool:
        """By the records themselves: a server has its own timeline up to its position, and the earlier ones up to
        where they were left."""
        timeline = commit.token.timeline
        if server.timeline < timeline:
            return False
        return commit.end <= min([server.position, *self.ends[timeline - 1 : server.timeline - 1]])


@st.composite
def histories(draw: st.DrawFn) -> History:
    begins, ends, commits = [0], [], []
    recorded: dict[int, int] = {}
    rows_at: dict[int, Token] = {}
    count = draw(st.integers(1, 4))
    for timeline in range(1, count + 1):
        at = begins[-1]
        if timeline > 1 and draw(st.booleans()):  # a write manager took an epoch on it
            at += draw(st.integers(0, 5))
            row = Token(timeline, at + 1)
            for ended in range(1, timeline):
                if ended not in recorded:
                    recorded[ended], rows_at[ended] = at, row
            at += 1  # its commit was confirmed, or the row is gone with it
        for _ in range(draw(st.integers(0, 3))):
            at += draw(st.integers(1, 20))
            commits.append(Commit(Token(timeline, at + draw(st.integers(0, 15))), at))
        ends.append(at + draw(st.integers(0, 3)))
        begins.append(ends[-1])
    return History(begins, ends, recorded, rows_at, commits)


@st.composite
def servers(draw: st.DrawFn, history: History) -> Token:
    timeline = draw(st.integers(1, len(history.ends)))
    return Token(timeline, draw(st.integers(0, history.ends[timeline - 1] + 10)))


def visible_switch(history: History, server: Token, timeline: int) -> int | None:
    row = history.rows_at.get(timeline)
    if row is None or server.timeline < row.timeline or server.position < row.position:
        return None
    return history.recorded[timeline]


@given(st.data())
def test_a_token_is_never_answered_by_a_server_without_its_commit(data: st.DataObject) -> None:
    history = data.draw(histories())
    server = data.draw(servers(history))
    for commit in history.commits:
        switched_at = visible_switch(history, server, commit.token.timeline)
        if has_replayed(server, commit.token, switched_at):
            assert history.has(server, commit)


@given(histories())
def test_a_server_that_has_the_row_answers_every_token_of_the_timeline_that_ended(history: History) -> None:
    for commit in history.commits:
        row = history.rows_at.get(commit.token.timeline)
        if row is not None:
            assert has_replayed(row, commit.token, history.recorded[commit.token.timeline])


def test_a_token_of_a_later_timeline_is_not_answered() -> None:
    assert not has_replayed(Token(1, 1000), Token(2, 10), None)


def test_the_highest_timeline_never_falls() -> None:
    current = CurrentTimeline()
    for timeline in (2, 5, 3):
        current.seen(timeline)
    assert current.highest == 5


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        (ServerState(True, 2, 0, None, 1), None),
        (ServerState(True, 2, 0, None, None), None),
        (ServerState(True, 2, 0, None, 0), "no standby confirms its commits"),
        (
            ServerState(True, 1, 0, None, 1),
            "claims to be primary on timeline 1, which has ended; the current one is 2",
        ),
        (ServerState(False, 2, 0, 2), None),
        (ServerState(False, 2, 0, None), "standby does not stream from a primary"),
        (ServerState(False, 1, 0, 1), "standby streams timeline 1, which has ended; the current one is 2"),
    ],
)
def test_what_is_wrong_with_a_server(state: ServerState, problem: str | None) -> None:
    assert state.problem(2) == problem
