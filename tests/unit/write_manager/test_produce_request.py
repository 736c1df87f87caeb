"""Messages in lines: what each becomes, and which line an error names."""

import pytest

from myqueue.protocol.errors import InvalidRequest, TooLarge
from myqueue.protocol.limits import MAX_MESSAGE_BYTES, MAX_POSTED_MESSAGES
from write_manager.produce_request import from_json, from_ndjson


def test_a_message_in_each_line_is_what_it_is_in_a_document() -> None:
    lines = [
        b'{"value": "one", "key": "k", "timestamp": 7, "headers": [{"key": "h", "value": "v"}], "partition_id": 2}',
        b'{"value": {"base64": "/wA="}, "timestamp": 8, "partition": 1}',
    ]
    document = b'{"messages": [%s]}' % b",".join(lines)
    for body in (b"\n".join(lines), b"\r\n".join([*lines, b""]), b"\n\n".join([b"", *lines, b" "])):
        found = from_ndjson(body)
        assert [(one.message, one.partition_id) for one in found] == [
            (one.message, one.partition_id) for one in from_json(document)
        ]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "at least one line"),
        (b"\n \n", "at least one line"),
        (b'{"value": "a"}\n\n{"value": 5}', "line 3: value"),
        (b'{"value": "a"}\n{"value": "b"', "line 2: "),
        (b'{"value": "a"} {"value": "b"}', "line 1: "),
        (b'[{"value": "a"}]', "line 1: "),
        (b'{"messages": [{"value": "a"}]}', "line 1: "),
        (b'{"value": "a"}\n{"value": "b", "valu": "c"}', "line 2: valu"),
        (b'{"value": "a", "partition": 1, "partition_id": 1}', "line 1: partition is the older name"),
    ],
)
def test_errors_name_the_line(body: bytes, said: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        from_ndjson(body)
    assert said in refused.value.message


def test_the_limits_are_those_of_a_document() -> None:
    with pytest.raises(TooLarge, match="line 2: message has"):
        from_ndjson(b'{"value": "a"}\n{"value": "' + b"x" * (MAX_MESSAGE_BYTES + 1) + b'"}')
    with pytest.raises(TooLarge, match="the limit is"):
        from_ndjson(b'{"value": "a"}\n' * (MAX_POSTED_MESSAGES + 1))
    assert len(from_ndjson(b'{"value": "a"}\n' * MAX_POSTED_MESSAGES)) == MAX_POSTED_MESSAGES
