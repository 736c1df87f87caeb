"""Session tokens: text on the wire, order inside."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from db.session_tokens import position_of
from myqueue.protocol.errors import InvalidRequest
from myqueue.protocol.token import Token

tokens = st.builds(Token, st.integers(0, 2**31), st.integers(0, 2**64 - 1))


@given(tokens)
def test_a_token_survives_the_wire(token: Token) -> None:
    assert Token.parse(str(token)) == token


@pytest.mark.parametrize("text", ["", "1", "1-", "-1", "1-g", "1-1-1", "1-0/3000148", "9" * 11 + "-1", " 1-1", "1-1\n"])
def test_what_is_not_a_token_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        Token.parse(text)


def test_positions_are_numbers() -> None:
    assert position_of("0/3000148") == 0x3000148
    assert position_of("2/A") == 0x2_0000_000A
