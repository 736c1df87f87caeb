"""Frames of the connection over which the write manager appends batches at a broker (`internal.APPEND_CONNECTION`).

The write manager sends requests; the broker answers each with its number, in any order.

    request   size          4   of what follows
              number        4   of the request
              length        1   of the request id
              request id        for log lines
              batch             with its dedup records behind it

    answer    size          4   of what follows
              number        4   of the request
              kind          1
              APPENDED          end offset 8, base offset 8, count 4: all are new and have consecutive offsets
              EACH              end offset 8, and for each message 8: its offset, or minus the code of its error
              FAILED            the JSON of an error's body
"""

import json
import struct
from collections.abc import Sequence
from typing import NamedTuple

from myqueue.protocol.errors import MyQueueError, from_body
from myqueue.protocol.limits import MAX_BATCH_BYTES

UPGRADE = "myqueue-append"
MAX_REQUEST_BYTES = MAX_BATCH_BYTES + (1 << 20)  # a batch, its dedup records and its request id
MAX_ANSWER_BYTES = 1 << 20

_SIZE = struct.Struct("<I")
_HEAD = struct.Struct("<II")  # size, number
_REQUEST = struct.Struct("<IIB")
_ANSWER = struct.Struct("<IIB")
_KIND, _END, _RUN = struct.Struct("<B"), struct.Struct("<q"), struct.Struct("<qqI")
_NUMBER_BYTES = 4
_MAX_REQUEST_ID_BYTES = 255
_APPENDED, _EACH, _FAILED = range(3)


class FrameError(Exception):
    """The other end does not speak this protocol; the connection has to be closed."""


class AppendedOffsets(NamedTuple):
    end_offset: int  # the partition's high watermark
    offsets: Sequence[int]  # of each message, or minus the error code that refused it


class AppendFrame(NamedTuple):
    number: int
    content: bytes


class FrameReader:
    """Cuts received bytes into frames."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._received = bytearray()

    def feed(self, data: bytes) -> list[AppendFrame]:
        """Raises FrameError. The frames before a malformed one are lost with it."""
        received = self._received
        received += data
        frames: list[AppendFrame] = []
        at = 0
        while len(received) - at >= _HEAD.size:
            size, number = _HEAD.unpack_from(received, at)
            if not _NUMBER_BYTES < size <= self._max_bytes:
                raise FrameError(f"a frame of {size} bytes")
            end = at + _SIZE.size + size
            if end > len(received):
                break
            frames.append(AppendFrame(number, bytes(received[at + _HEAD.size : end])))
            at = end
        if at:
            del received[:at]
        return frames


def encode_request(number: int, request_id: str | None, batch: bytes) -> list[bytes]:
    """In two pieces: the batch is not copied."""
    request = (request_id or "").encode()
    if len(request) > _MAX_REQUEST_ID_BYTES:
        request = request[:_MAX_REQUEST_ID_BYTES].decode(errors="ignore").encode()  # not within a character
    size = _REQUEST.size - _SIZE.size + len(request) + len(batch)
    return [_REQUEST.pack(size, number, len(request)) + request, batch]


def decode_request(content: bytes) -> tuple[str | None, bytes]:
    """The request id, and the batch with its dedup records."""
    start = 1 + content[0]
    if start > len(content):
        raise FrameError("a request id that is cut off")
    try:
        return content[1:start].decode() or None, content[start:]
    except UnicodeDecodeError as error:
        raise FrameError("a request id that is not text") from error


def encode_answer(number: int, answer: AppendedOffsets | MyQueueError) -> bytes:
    if isinstance(answer, MyQueueError):
        kind, content = _FAILED, json.dumps(answer.to_body(None)).encode()
    elif isinstance(answer.offsets, range):
        kind, content = _APPENDED, _RUN.pack(answer.end_offset, answer.offsets.start, len(answer.offsets))
    else:
        kind, content = _EACH, struct.pack(f"<{1 + len(answer.offsets)}q", answer.end_offset, *answer.offsets)
    return _ANSWER.pack(_ANSWER.size - _SIZE.size + len(content), number, kind) + content


def decode_answer(content: bytes) -> AppendedOffsets | MyQueueError:
    kind, size = content[0], len(content) - _KIND.size
    if kind == _APPENDED and size == _RUN.size:
        end_offset, base_offset, count = _RUN.unpack_from(content, _KIND.size)
        return AppendedOffsets(end_offset, range(base_offset, base_offset + count))
    if kind == _EACH and size >= _END.size and size % _END.size == 0:
        end_offset, *offsets = struct.unpack_from(f"<{size // _END.size}q", content, _KIND.size)
        return AppendedOffsets(end_offset, offsets)
    if kind == _FAILED:
        try:
            return from_body(json.loads(content[_KIND.size :]), 500)
        except ValueError as error:
            raise FrameError("an error that is not JSON") from error
    raise FrameError(f"an answer of kind {kind} with {size} bytes")
