"""A person's request for a promotion is open for a minute, and only to the runner that it was asked of."""

import json
from pathlib import Path

import pytest

from stack.failover import PromotionRequest
from stack.home import Home, read_json
from stack.promotion_requests import OPEN_S, PromotionRequests

NOW_S = 1000.0


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path)
    home.create(0o700)
    return home


def ask(home: Home, text: str = json.dumps({"name": "postgres-2", "anyway": True})) -> None:
    home.promotion_request.write_text(text)


def test_a_request_is_taken_once_and_answered_once(home: Home) -> None:
    requests = PromotionRequests(home)
    assert requests.take(NOW_S) is None
    ask(home)
    assert requests.take(NOW_S) == PromotionRequest("postgres-2", anyway=True) == requests.open_at(NOW_S)
    assert requests.take(NOW_S) is None
    requests.answer(None)
    assert requests.open_at(NOW_S) is None
    assert read_json(home.promotion_answer) == {"refusal": None}
    requests.answer("again")
    assert read_json(home.promotion_answer) == {"refusal": None}


def test_a_request_that_is_over_does_not_excuse_a_later_promotion(home: Home) -> None:
    requests = PromotionRequests(home)
    ask(home)
    requests.take(NOW_S)
    assert requests.open_at(NOW_S + OPEN_S) is None
    assert requests.take(NOW_S + OPEN_S) is None
    assert "within 60 s" in read_json(home.promotion_answer)["refusal"]


def test_what_a_power_cut_left_is_not_carried_out(home: Home) -> None:
    ask(home)
    requests = PromotionRequests(home)
    requests.forget()
    assert requests.take(NOW_S) is None


@pytest.mark.parametrize("text", ["{", "[1]", '{"who": "postgres-2"}'])
def test_what_is_no_request_is_removed(home: Home, text: str) -> None:
    ask(home, text)
    assert PromotionRequests(home).take(NOW_S) is None
    assert not home.promotion_request.exists()
