"""The rule of the invoice pipeline, its invoices, and the proof that the counts add up."""

import copy
import json
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.invoices import INVALID_TOPIC, VALID_TOPIC
from examples.invoices.audit import audit
from examples.invoices.filter import judge
from examples.invoices.sample_invoices import DEFECTS, Made, make_invoices
from examples.invoices.validity import problem, tax_cents

GOOD: dict[str, Any] = {
    "invoice_id": "gen1-1-000001",
    "customer": "Ada Lovelace",
    "currency": "EUR",
    "date": "2026-02-28",
    "lines": [{"description": "ink", "quantity": 2, "unit_price_cents": 1899, "amount_cents": 3798}],
    "net_cents": 3798,
    "tax_percent": 19,
    "tax_cents": 722,
    "total_cents": 4520,
}


def test_a_right_invoice_is_valid() -> None:
    assert problem(GOOD) is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"invoice_id": ""}, "missing invoice id"),
        ({"customer": " "}, "missing customer"),
        ({"customer": None}, "missing customer"),
        ({"currency": "XXX"}, "unknown currency"),
        ({"currency": ["EUR"]}, "unknown currency"),
        ({"date": "2026-02-30"}, "bad date"),
        ({"date": 20260228}, "bad date"),
        ({"lines": []}, "no lines"),
        ({"lines": ["ink"]}, "incomplete line"),
        ({"lines": [{"quantity": True, "unit_price_cents": 1, "amount_cents": 1}]}, "incomplete line"),
        ({"lines": [{"quantity": -1, "unit_price_cents": 1, "amount_cents": -1}]}, "negative amount"),
        ({"lines": [{"quantity": 2, "unit_price_cents": 3, "amount_cents": 5}]}, "wrong line amount"),
        ({"tax_cents": 723, "total_cents": 4521}, "wrong tax"),
        ({"tax_percent": 18}, "wrong tax"),
        ({"total_cents": 4521}, "wrong total"),
        ({"net_cents": 3797}, "wrong total"),
        ({"total_cents": None}, "missing sums"),
    ],
)
def test_each_way_to_be_wrong(change: dict[str, Any], reason: str) -> None:
    assert problem(copy.deepcopy(GOOD) | change) == reason


@pytest.mark.parametrize("strange", [None, [], "invoice", 5, {}])
def test_what_is_no_invoice_is_invalid(strange: object) -> None:
    assert problem(strange) is not None


def test_tax_is_rounded_to_the_nearest_cent() -> None:
    assert [tax_cents(net, 19) for net in (100, 50, 3798)] == [19, 10, 722]


@given(st.integers(), st.text(max_size=5))
def test_the_filter_finds_exactly_the_defect_that_was_made(seed: int, run: str) -> None:
    for made in make_invoices("gen1", "1", 20, seed, run):
        assert problem(made.invoice) == made.defect


def test_every_defect_is_found() -> None:
    for reason, spoil in DEFECTS.items():
        for seed in range(20):
            invoice = copy.deepcopy(GOOD)
            spoil(invoice, Random(seed))
            assert problem(invoice) == reason


def test_the_same_seed_makes_the_same_invoices() -> None:
    first, second, other = (list(make_invoices("gen1", "1", 50, seed, "r")) for seed in (1, 1, 2))
    assert first == second != other
    assert 0 < sum(made.defect is not None for made in first) < 50


def test_a_filter_judges_anything_it_reads() -> None:
    for value in (b"not json", b"[]", b'{"invoice_id": 1}', b"\xff"):
        topic, verdict = judge(value, 1, 7)
        assert topic == INVALID_TOPIC
        assert verdict["reason"]
        assert verdict["source"] == {"partition": 1, "offset": 7}
    made = next(one for one in make_invoices("g", "1", 20, 1, "r") if one.defect is None)
    topic, verdict = judge(json.dumps(made.invoice).encode(), 1, 7)
    assert topic == VALID_TOPIC
    assert "reason" not in verdict


def sides(made: list[Made]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    valid = [{"invoice": one.invoice} for one in made if one.defect is None]
    invalid = [{"invoice": one.invoice, "reason": one.defect} for one in made if one.defect is not None]
    return valid, invalid


def test_the_audit_is_content_only_when_everything_is_there_once() -> None:
    made = list(make_invoices("gen1", "1", 40, 1, "r")) + list(make_invoices("gen2", "2", 20, 1, "r"))
    valid, invalid = sides(made)
    result = audit(made, valid, invalid)
    assert result.adds_up
    assert (result.total.sent, result.total.valid + result.total.invalid) == (60, 60)
    assert result.by_generator["gen2"].sent == 20
    assert result.reasons.total() == len(invalid)

    assert audit(made, valid[1:], invalid).lost == [valid[0]["invoice"]["invoice_id"]]
    assert audit(made, [*valid, valid[3]], invalid).repeated == [valid[3]["invoice"]["invoice_id"]]
    assert len(audit(made, [*valid[1:], invalid[0]], [*invalid[1:], valid[0]]).misjudged) == 2
    assert len(audit(made, valid, [invalid[0] | {"reason": "other"}, *invalid[1:]]).misjudged) == 1
    assert audit(made, [*valid, {"invoice": {"invoice_id": "x"}}], invalid).unknown == ["x"]
    sourced = [verdict | {"source": {"partition": 1, "offset": at}} for at, verdict in enumerate(valid)]
    again = audit(made, [*sourced, sourced[3]], invalid)
    assert again.adds_up
    assert again.sent_again == 1
    assert audit(made, [*sourced, sourced[3] | {"source": {"partition": 0, "offset": 3}}], invalid).repeated
    # One lost and one doubled: the sum is right, and yet it does not add up.
    assert not audit(made, [*valid[1:], valid[1]], invalid).adds_up
