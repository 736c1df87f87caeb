"""How messages are printed, and how lines of input become messages."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from myqueue import Message
from myqueue.cli.formats import (
    BadFormat,
    BadLine,
    Shape,
    formatter,
    json_line,
    messages_in,
    unescaped,
    visible,
    visible_json_line,
)
from myqueue.protocol.json_bytes import bytes_from_json
from myqueue.protocol.limits import MAX_KEY_BYTES, MAX_MESSAGE_BYTES

MESSAGE = Message("orders", b"tea", b"t-1", 2, 17, 1_700_000_000_000, (("a", b"1"), ("b", None)))
BARE = Message("orders", b"", None, 0, 0, 0)


@pytest.mark.parametrize(
    ("pattern", "message", "expected"),
    [
        ("%s\\n", MESSAGE, b"tea\n"),
        ("%t %p %o %k %s\\n", MESSAGE, b"orders 2 17 t-1 tea\n"),
        ("%T %S %K %h", MESSAGE, b"1700000000000 3 3 a=1,b="),
        ("[%k] %K %S %h", BARE, b"[] -1 0 "),
        ("100%% \\x41\\xff\\\\", BARE, b"100% A\xff\\"),
        ("", BARE, b""),
    ],
)
def test_a_format_has_the_letters_of_kcat(pattern: str, message: Message, expected: bytes) -> None:
    assert formatter(pattern)(message) == expected


@pytest.mark.parametrize(("pattern", "wrong"), [("%z", "%z is not known"), ("a%", "% is not known"), ("\\q", "\\q is")])
def test_a_wrong_format_is_refused_with_what_there_is(pattern: str, wrong: str) -> None:
    with pytest.raises(BadFormat, match=re.escape(wrong)):
        formatter(pattern)


@given(st.binary())
def test_values_come_out_as_they_are_and_harmless_on_a_terminal(value: bytes) -> None:
    message = MESSAGE._replace(value=value)
    assert formatter("%s")(message) == value
    shown = formatter("%s", visible)(message).decode()
    assert all(character.isprintable() or character in "\t\n" or ord(character) > 159 for character in shown)


@given(st.binary(), st.none() | st.binary(), st.lists(st.tuples(st.text(), st.none() | st.binary())))
def test_a_json_line_holds_the_whole_message(
    value: bytes, key: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    message = MESSAGE._replace(value=value, key=key, headers=tuple(headers))
    line = json_line(message)
    shown = visible_json_line(message)
    assert json.loads(shown) == json.loads(line)
    assert not any(ord(character) < 32 or 127 <= ord(character) < 160 for character in shown.decode()[:-1])
    assert line.count(b"\n") == 1
    found = json.loads(line)
    assert (found["topic"], found["partition"], found["offset"]) == ("orders", 2, 17)
    assert bytes_from_json(found["value"]) == value
    assert (None if found["key"] is None else bytes_from_json(found["key"])) == key
    assert [
        (header["key"], None if header["value"] is None else bytes_from_json(header["value"]))
        for header in found["headers"]
    ] == headers


@given(st.binary(), st.integers(1, 7), st.sampled_from([b"\n", b"\0"]))
def test_lines_are_the_same_however_the_input_arrives(data: bytes, size: int, delimiter: bytes) -> None:
    chunks = [data[at : at + size] for at in range(0, len(data), size)]
    values = [value for _, value in messages_in(chunks, Shape(delimiter))]
    assert delimiter.join(values) == data.removesuffix(delimiter)
    assert all(delimiter not in value for value in values)


def test_a_separator_divides_at_its_first_place() -> None:
    assert list(messages_in([b"a:1\n:2\nb:3:4\n"], Shape(separator=b":"))) == [
        (b"a", b"1"),
        (b"", b"2"),
        (b"b", b"3:4"),
    ]
    assert list(messages_in([b"x\n\ny"], Shape(key=b"k"))) == [(b"k", b"x"), (b"k", b""), (b"k", b"y")]
    assert unescaped("\\t") == b"\t"


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"a:1\nb2\n", "line 2: has no key separator ':'"),
        (b"a:" + bytes(MAX_MESSAGE_BYTES + 1) + b"\n", "line 1: message has 1048577 bytes"),
        (bytes(MAX_KEY_BYTES + 1) + b":1\n", "line 1: key has 65537 bytes"),
        (b"a:1\n" + bytes(2 * MAX_MESSAGE_BYTES), "line 2: is longer than a message may be"),
    ],
)
def test_a_bad_line_is_named(data: bytes, problem: str) -> None:
    with pytest.raises(BadLine, match=problem):
        list(messages_in([data], Shape(separator=b":")))
