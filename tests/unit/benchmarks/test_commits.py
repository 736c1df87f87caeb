"""A store and the plain file commit the same bytes in turn."""

from pathlib import Path

from benchmarks.commits import FILE_BYTES, PAGE_BYTES, commit_ratio, plain_file
from benchmarks.store import opened_store
from myqueue.protocol.batch import HEADER_BYTES


def test_both_take_turns_with_the_same_bytes(tmp_path: Path) -> None:
    before_store: list[bytes] = []

    def store(data: bytes) -> None:
        (plain,) = tmp_path.iterdir()
        before_store.append(plain.read_bytes()[: len(data)])
        stored.append(data)

    stored: list[bytes] = []
    cost = commit_ratio(store, 5000, tmp_path, seconds=0.5)
    assert cost.rounds == len(stored) >= 2
    assert set(map(len, stored)) == {5000}
    assert before_store[0] != stored[0], "the store comes first"
    assert before_store[1] == stored[0], "then the plain file"
    assert cost.ratio == cost.store_s / cost.plain_s > 0
    assert list(tmp_path.iterdir()) == []


def test_the_plain_file_goes_round_in_blocks_that_were_written_before(tmp_path: Path) -> None:
    large = FILE_BYTES // 2
    with plain_file(tmp_path) as commit:
        (file,) = tmp_path.iterdir()
        blocks = file.stat().st_blocks
        for letter in (b"a", b"b", b"c"):
            commit(letter * (large - 1))
        assert file.stat().st_size == FILE_BYTES
        assert file.stat().st_blocks == blocks
        written = file.read_bytes()
        assert written[:1] == b"c"
        assert written[large : large + 1] == b"b"
        assert large % PAGE_BYTES == 0


def test_the_store_hands_out_what_was_committed_first(tmp_path: Path) -> None:
    with opened_store(tmp_path / "store") as store:
        for number in range(3):
            store.commit(b"%d" % number * 5000)
        assert bytes(store.read()) == b"0" * (5000 - HEADER_BYTES)
