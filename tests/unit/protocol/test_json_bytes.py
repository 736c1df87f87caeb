"""Any bytes survive JSON; text stays readable in it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from myqueue.protocol.json_bytes import bytes_from_json, bytes_to_json


@given(st.binary())
def test_bytes_come_back_as_they_were(value: bytes) -> None:
    assert bytes_from_json(json.loads(json.dumps(bytes_to_json(value)))) == value


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_text_travels_as_a_string(text: str) -> None:
    assert bytes_to_json(text.encode()) == text


def test_other_bytes_travel_as_base64() -> None:
    assert bytes_to_json(b"\xff\x00") == {"base64": "/wA="}


@pytest.mark.parametrize("value", ["\ud800", {"base64": "?"}, {"base64": 1}, {"base64": "", "x": 1}, 5, None, ["a"]])
def test_what_is_neither_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"must|base64"):
        bytes_from_json(value)
