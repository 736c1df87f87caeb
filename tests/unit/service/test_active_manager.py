"""Following the active write manager: which one gets a call, and whose answers count."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from myqueue.protocol.errors import BrokerNotFound, StandbyManager, Unauthorized
from service.active_manager import (
    RESTORED_S,
    STATUS_INTERVAL_S,
    STATUS_TIMEOUT_S,
    AsyncManagerCaller,
    Attempt,
    ManagerCaller,
    ManagerUrls,
    WriteManagerFollower,
)
from service.async_calls import AsyncCaller
from service.calls import Caller, CallResponse, NoAnswer
from tests.unit.client.scripted_server import Reply, ScriptedServer
from tests.unit.service.write_managers_in_memory import (
    OLDER,
    OUT_OF_REACH,
    PAUSED,
    REFUSED,
    STANDBY,
    A,
    B,
    CutOff,
    Managers,
    State,
)


@pytest.mark.parametrize("before", [REFUSED, STANDBY])
def test_the_next_one_gets_the_call_when_the_first_cannot_have_carried_it_out(before: State) -> None:
    managers = Managers({A: before, B: 7})
    assert managers.call().body == B.encode()
    assert managers.asked() == [A, B]
    assert managers.active.identity == (B, 7)
    managers.call()
    assert managers.asked() == [B], "it is remembered"


def test_one_that_answers_is_left_when_another_one_has_taken_over() -> None:
    """It has lost only its way to PostgreSQL: to its callers it is as well as ever."""
    managers = Managers({A: 7, B: STANDBY})
    managers.call()
    managers.states[A] = CutOff(7)
    managers.now_s += 1
    managers.follow()
    assert managers.call().body == A.encode(), "nobody has taken over yet"
    managers.states[B] = 8
    managers.now_s += 1
    managers.follow()
    assert managers.call().body == B.encode()
    assert managers.asked() == [B]
    managers.states[B] = REFUSED
    with pytest.raises(NoAnswer) as refused:
        managers.call()
    assert refused.value.outcome == "not_written", "the one before gets no call: its answer would not be used"


def test_an_answer_that_was_under_way_when_another_one_was_found_is_not_used() -> None:
    managers = Managers({A: 7, B: 8})
    steps = managers.active.attempts(5)
    [to_the_one_before] = next(steps)
    assert to_the_one_before.url == A
    managers.follow()
    with pytest.raises(NoAnswer) as lost:
        steps.send(managers.answers([to_the_one_before]))
    assert lost.value.outcome == "unknown"


@pytest.mark.parametrize("other", [STANDBY, REFUSED, PAUSED])
def test_a_busy_one_that_misses_the_question_for_its_status_is_called_all_the_same(other: State) -> None:
    managers = Managers({A: 7, B: other})
    managers.call()
    for _ in range(3):
        managers.states[A] = PAUSED
        managers.now_s += 1
        managers.follow()
        managers.states[A] = 7
        assert managers.call().body == A.encode()
        assert managers.asked() == [A]


def test_one_of_an_older_release_is_followed() -> None:
    managers = Managers({A: REFUSED, B: OLDER})
    for _ in range(3):
        managers.follow()
        assert managers.call().body == B.encode()
        managers.now_s += 1
    managers.states[A] = 1
    managers.follow()
    assert managers.call().body == A.encode()


def test_one_that_refuses_the_secret_says_so() -> None:
    """Rather than that none is active."""

    class Strangers(Managers):
        def answer(self, attempt: Attempt) -> CallResponse | NoAnswer:
            return CallResponse(401, {}, json.dumps(Unauthorized().to_body(None)).encode())

    managers = Strangers({A: 1, B: STANDBY})
    for _ in range(3):
        managers.follow()
        assert managers.call().status == 401
        managers.now_s += 1


def test_a_call_without_answer_is_not_repeated_elsewhere_but_the_next_one_goes_there() -> None:
    managers = Managers({A: 7, B: STANDBY})
    managers.call()
    managers.states = {A: PAUSED, B: 8}
    with pytest.raises(NoAnswer) as lost:
        managers.call()
    assert lost.value.outcome == "unknown"
    assert managers.asked() == [A]
    assert managers.call().body == B.encode()
    assert managers.asked() == [B]


def test_a_paused_one_holds_up_one_call_only() -> None:
    """Until the other one is active, calls fail at once; only the question for its status waits, now and then."""
    managers = Managers({A: PAUSED, B: STANDBY})
    with pytest.raises(NoAnswer):
        managers.call()
    for _ in range(20):
        began_s = managers.now_s
        with pytest.raises(NoAnswer, match="active") as refused:
            managers.call()
        assert refused.value.outcome == "not_written"
        assert managers.asked() == [B]
        assert managers.now_s - began_s <= STATUS_TIMEOUT_S
    managers.states[B] = 8
    assert managers.call().body == B.encode()


def test_however_many_calls_wait_the_status_is_asked_for_now_and_then_only() -> None:
    managers = Managers({A: REFUSED, B: STANDBY})
    asked = 0
    for _ in range(100):
        with pytest.raises(NoAnswer):
            managers.call()
        asked += any(attempt.asks_status for attempt in managers.attempts)
        managers.now_s += STATUS_INTERVAL_S / 10
    assert asked <= 11


def test_an_answer_of_a_fenced_one_is_not_used() -> None:
    managers = Managers({A: 7, B: STANDBY})
    managers.call()
    managers.states = {A: PAUSED, B: 8}
    with pytest.raises(NoAnswer):
        managers.call()
    managers.call()
    managers.states = {A: CutOff(7), B: REFUSED}  # resumed, and cannot find out
    for _ in range(50):
        with pytest.raises(NoAnswer):
            managers.call()
        managers.now_s += 1
    managers.states[B] = 9
    assert managers.call().body == B.encode()


@pytest.mark.parametrize("other", [STANDBY, REFUSED])
def test_a_database_that_was_restored_has_a_lower_epoch(other: State) -> None:
    """Only one is active, and the other one certainly is not: there is no other one to wait for."""
    managers = Managers({A: 7, B: STANDBY})
    managers.call()
    managers.states = {A: 3, B: other}
    with pytest.raises(NoAnswer):
        managers.call()
    managers.now_s += 1
    assert managers.call().body == A.encode()
    assert managers.active.identity == (A, 3)


@pytest.mark.parametrize("other", [PAUSED, OUT_OF_REACH])
def test_a_lower_epoch_is_followed_when_it_was_the_only_active_one_for_long(other: State) -> None:
    managers = Managers({A: 7, B: STANDBY})
    managers.call()
    managers.states = {A: 3, B: other}
    with pytest.raises(NoAnswer):
        managers.call()
    began_s = managers.now_s
    while managers.now_s - began_s < RESTORED_S - 1:
        managers.follow()
        with pytest.raises(NoAnswer):
            managers.call(timeout_s=0.5)
        managers.now_s += 1
    managers.now_s += 3
    managers.follow()
    assert managers.call().body == A.encode()


def test_one_slow_call_does_not_make_others_fail() -> None:
    """Everything else finds the write manager that is active, whether a round of questions is over or under way."""
    managers = Managers({A: 7, B: STANDBY})
    managers.call()
    for _ in range(3):
        managers.states[A] = PAUSED
        with pytest.raises(NoAnswer):
            managers.call(timeout_s=STATUS_INTERVAL_S / 10)
        managers.states[A] = 7
        assert managers.call().body == A.encode()


def test_a_call_waits_for_the_questions_of_another_one() -> None:
    managers = Managers({A: PAUSED, B: STANDBY})
    with pytest.raises(NoAnswer):
        managers.call()
    managers.states[A] = 7
    first, second, hasty = (managers.active.attempts(timeout_s) for timeout_s in (5, 5, 0.05))
    for steps in (first, second, hasty):
        [attempt] = next(steps)
        assert attempt.url == B
    round_ = first.send(managers.answers([Attempt(B, 5)]))
    assert [attempt.asks_status for attempt in round_] == [True, True], "at the same time"
    assert second.send(managers.answers([Attempt(B, 5)])) == []
    assert hasty.send(managers.answers([Attempt(B, 5)])) == []
    managers.now_s += 0.05
    with pytest.raises(NoAnswer, match="active"):
        hasty.send([])
    assert second.send([]) == []
    [attempt] = first.send(managers.answers(round_))
    assert attempt.url == A
    [attempt] = second.send([])
    assert attempt.url == A


def test_a_round_that_is_given_up_does_not_keep_others_waiting() -> None:
    managers = Managers({A: REFUSED, B: STANDBY})
    steps = managers.active.attempts(5)
    attempts = next(steps)
    while not attempts[0].asks_status:
        attempts = steps.send(managers.answers(attempts))
    steps.close()
    managers.states[A] = 7
    managers.now_s += 1
    assert managers.call().body == A.encode()


def test_the_highest_epoch_wins() -> None:
    managers = Managers({A: STANDBY, B: REFUSED, "http://c:1": STANDBY})
    with pytest.raises(NoAnswer):
        managers.call()
    managers.now_s += 1
    managers.states = {A: REFUSED, B: 7, "http://c:1": 8}
    managers.active._silent = {B, "http://c:1"}
    assert managers.call().body == b"http://c:1"


def test_all_attempts_share_one_deadline() -> None:
    managers = Managers({A: REFUSED, B: 7})
    managers.call(timeout_s=2.0)
    assert all(attempt.timeout_s <= 2.0 for attempt in managers.attempts)
    managers.states = {A: REFUSED, B: STANDBY}
    with pytest.raises(NoAnswer):
        managers.call(timeout_s=0.1)
    assert any(attempt.asks_status for attempt in managers.attempts)
    assert all(attempt.timeout_s <= 0.1 for attempt in managers.attempts)


def test_a_single_one_is_always_asked() -> None:
    """There is no other one, so that nothing is gained by leaving it."""
    managers = Managers({A: PAUSED})
    for _ in range(3):
        with pytest.raises(NoAnswer):
            managers.call()
        assert managers.asked() == [A]
    managers.states[A] = 1
    assert managers.call().body == A.encode()


EPOCHS = [1, 2, 3, 4]
STATES = st.sampled_from([REFUSED, PAUSED, OUT_OF_REACH, STANDBY, *EPOCHS, *map(CutOff, EPOCHS)])


@given(st.lists(st.tuples(STATES, STATES, st.floats(0, 0.5), st.booleans()), min_size=1, max_size=12))
def test_a_call_is_carried_out_once_at_most_and_epochs_do_not_go_back(
    steps: list[tuple[State, State, float, bool]],
) -> None:
    managers = Managers({A: STANDBY, B: STANDBY})
    highest = 0
    for a, b, passed_s, follows in steps:
        managers.states = {A: a, B: b}
        managers.now_s += passed_s
        if follows:
            managers.follow()
        try:
            answer = managers.call(timeout_s=1)
        except NoAnswer as error:
            if error.outcome == "not_written":
                assert managers.carried_out == []
        else:
            assert managers.carried_out[-1:] == [answer.body.decode()]
            epoch = int(answer.headers["x-myqueue-epoch"])
            everyone_answers = {a, b}.isdisjoint({PAUSED, OUT_OF_REACH})
            is_cut_off = isinstance(managers.states[answer.body.decode()], CutOff)
            assert epoch >= highest or (everyone_answers and not is_cut_off)
            highest = epoch
        assert len(managers.carried_out) <= 1


@given(st.lists(st.tuples(STATES, STATES), max_size=20), st.booleans())
def test_whatever_happened_the_active_one_is_found_with_the_second_call(
    steps: list[tuple[State, State]], second_is_active: bool
) -> None:
    managers = Managers({A: STANDBY, B: STANDBY})
    for a, b in steps:
        managers.states = {A: a, B: b}
        managers.now_s += 0.1
        try:
            managers.call()
        except NoAnswer:
            continue
    url = B if second_is_active else A
    managers.states = {A: PAUSED, B: PAUSED, url: 9}
    managers.now_s += 1
    try:
        managers.call()
    except NoAnswer:
        managers.now_s += 1
        assert managers.call().body == url.encode()


@pytest.fixture
def pair() -> Iterator[tuple[ScriptedServer, ScriptedServer]]:
    with ExitStack() as servers:
        yield servers.enter_context(closing(ScriptedServer())), servers.enter_context(closing(ScriptedServer()))


def test_over_http(pair: tuple[ScriptedServer, ScriptedServer]) -> None:
    """From threads and from the event loop alike: the body goes on to the next one, errors come as their classes."""
    first, second = pair
    not_found = Reply(404, BrokerNotFound().to_body(None))
    first.script(*[Reply(503, StandbyManager().to_body(None))] * 2)
    second.script(*[Reply(200, {"answer": 42}), not_found] * 2)
    urls = [first.url, second.url]
    caller = ManagerCaller(Caller("secret"), WriteManagerFollower(urls))
    with closing(caller):
        assert caller.json("POST", "/internal/x", {"a": 1}) == {"answer": 42}
        with pytest.raises(BrokerNotFound):
            caller.json("POST", "/internal/x", {"a": 1})

    async def from_the_loop() -> None:
        with closing(AsyncManagerCaller(AsyncCaller("secret"), WriteManagerFollower(urls))) as async_caller:
            assert await async_caller.json("POST", "/internal/x", {"a": 1}) == {"answer": 42}
            with pytest.raises(BrokerNotFound):
                await async_caller.json("POST", "/internal/x", {"a": 1})

    asyncio.run(from_the_loop())
    assert [(seen.path, seen.body) for seen in first.seen + second.seen] == [("/internal/x", {"a": 1})] * 6


@pytest.mark.parametrize(
    ("text", "urls"),
    [
        ("http://a:1", ("http://a:1",)),
        (" http://a:1 , http://b:2,", ("http://a:1", "http://b:2")),
        ("", None),
        ("a:1", None),
        ("http://a:1/x", None),
        ("https://a:1", None),
        ("http://a:1,http://a:1", None),
    ],
)
def test_the_setting(text: str, urls: tuple[str, ...] | None) -> None:
    setting = TypeAdapter(ManagerUrls)
    if urls is None:
        with pytest.raises(ValidationError):
            setting.validate_python(text)
    else:
        assert setting.validate_python(text) == urls
