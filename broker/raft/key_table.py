"""The last idempotency keys of a partition in a few flat buffers: about 45 bytes a key, no object for each.

Records of 28 bytes stand oldest first:

     0  idempotency key hash     16
    16  CRC32C of the message     4
    20  offset                    8

They are numbered from 1 on, over the life of the table. A hash table of chains leads to them: `_heads` has the number
of the newest record of a chain, `_links` for every record the number of the next older one, 0 for none. A chain is in
falling order, so it ends at the first number that is no longer kept: eviction only moves `_first` and cleans nothing
up. A key that comes again gets a new record, and the old one, further down the chain, is found no more.
"""

import struct
from array import array
from typing import Final, NamedTuple

KEY_BYTES: Final = 16

_RECORD = struct.Struct(f"<{KEY_BYTES}sIQ")
KEY_RECORD_BYTES: Final = _RECORD.size
_VALUE = struct.Struct("<IQ")
_KEY_ONLY = struct.Struct(f"<{KEY_BYTES}s{_VALUE.size}x")
_FEWEST_CHAINS = 8
_MAX_NUMBER = (1 << 32) - 1  # numbers are kept in 4 bytes


class SeenKey(NamedTuple):
    crc: int
    offset: int


class KeyTable:
    """At most `window` keys, the last ones put in."""

    __slots__ = ("_base", "_count", "_first", "_heads", "_links", "_mask", "_records", "_window")

    def __init__(self, window: int, first_number: int = 1) -> None:
        self._window = window
        self.load(b"")
        self._base = self._first = first_number

    def __len__(self) -> int:
        return self._count

    def get(self, key: bytes) -> SeenKey | None:
        number = self._find(key)
        if not number:
            return None
        return SeenKey(*_VALUE.unpack_from(self._records, (number - self._base) * KEY_RECORD_BYTES + KEY_BYTES))

    def put(self, key: bytes, crc: int, offset: int) -> None:
        """The key is the newest one now, whether it was there or not."""
        if len(key) != KEY_BYTES:
            raise ValueError(f"a key has {KEY_BYTES} bytes, not {len(key)}")
        if not self._find(key):
            self._count += 1
        heads, links = self._heads, self._links
        chain = hash(key) & self._mask
        links.append(heads[chain])
        self._records += _RECORD.pack(key, crc, offset)
        heads[chain] = number = self._base + len(links) - 1
        while self._count > self._window:
            self._evict_first()
        # Each of these is paid for by the puts since the last time.
        if len(links) > 2 * len(heads) or number == _MAX_NUMBER:
            self.load(self.packed())
        elif (self._first - self._base) * 8 > len(links):
            self._trim()

    def packed(self) -> bytes:
        """The records of all keys, oldest first."""
        with memoryview(self._records) as view:
            start = (self._first - self._base) * KEY_RECORD_BYTES
            if self._count == len(self._links) - (self._first - self._base):
                return bytes(view[start:])
            # Some keys have newer records as well.
            starts = range(self._first - self._base, len(self._links))
            return b"".join(
                [view[at * KEY_RECORD_BYTES : (at + 1) * KEY_RECORD_BYTES] for at in starts if self._is_newest(at)]
            )

    def load(self, packed: bytes) -> None:
        """Replaces everything. More keys than the window leave when the next one is put in."""
        if len(packed) % KEY_RECORD_BYTES:
            raise ValueError("the last key record is cut off")
        count = len(packed) // KEY_RECORD_BYTES
        chains = max(_FEWEST_CHAINS, 1 << count.bit_length())
        mask = chains - 1
        heads = array("I", bytes(4 * chains))
        links = array("I", bytes(4 * count))
        for number, (key,) in enumerate(_KEY_ONLY.iter_unpack(packed), 1):
            chain = hash(key) & mask
            links[number - 1] = heads[chain]
            heads[chain] = number
        self._heads, self._links, self._mask = heads, links, mask
        self._records = bytearray(packed)
        self._base = self._first = 1  # number of the first record in the buffer, and of the first that counts
        self._count = count

    def _find(self, key: bytes) -> int:
        """The number of its record, 0 if there is none."""
        number = self._heads[hash(key) & self._mask]
        while number >= self._first:
            at = number - self._base
            if self._records.startswith(key, at * KEY_RECORD_BYTES):
                return number
            number = self._links[at]
        return 0

    def _evict_first(self) -> None:
        at = self._first - self._base
        if self._count == len(self._links) - at or self._is_newest(at):
            self._count -= 1
        self._first += 1

    def _is_newest(self, at: int) -> bool:
        """Whether this record's key has no newer one."""
        start = at * KEY_RECORD_BYTES
        return self._find(bytes(self._records[start : start + KEY_BYTES])) == self._base + at

    def _trim(self) -> None:
        evicted = self._first - self._base
        del self._records[: evicted * KEY_RECORD_BYTES]
        del self._links[:evicted]
        self._base = self._first
