"""What a query has read, from Spark's files."""

from pathlib import Path
from uuid import UUID

import pytest

from spark.incremental_query import folder_of, last_finished, parse_offsets, planned_batch, query_id

TOPIC_ID = "9f1d3c52-8d0a-4f6e-9a51-1b7f3f3f9c11"
METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1700}'
OFFSETS = f'v1\n{METADATA}\n{{"a": {{"0": 23, "1": 4, "id": "{TOPIC_ID}"}}}}'
BEFORE_0_12 = f'v1\n{METADATA}\n{{"a/0": 23, "a/1": 4, "a": "{TOPIC_ID}"}}'


@pytest.mark.parametrize("text", [OFFSETS, BEFORE_0_12])
def test_a_micro_batch(text: str) -> None:
    found = parse_offsets(text)
    assert found.ends == {("a", 0): 23, ("a", 1): 4}
    assert found.topic_ids == {"a": UUID(TOPIC_ID)}
    assert found.planned_ms == 1700


def test_the_last_finished_one(tmp_path: Path) -> None:
    assert last_finished(tmp_path) is None
    for folder, numbers in (("offsets", (9, 10, 11)), ("commits", (9, 10))):
        (tmp_path / folder).mkdir()
        for number in numbers:
            (tmp_path / folder / str(number)).write_text(OFFSETS.replace("23", str(number)))
            (tmp_path / folder / f".{number}.crc").touch()
    last = last_finished(tmp_path)
    assert last == planned_batch(tmp_path, 10)
    assert last is not None
    assert last.ends["a", 0] == 10


def test_query_id(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text('{"id":"abc"}')
    assert query_id(tmp_path) == "abc"


def test_every_cluster_has_its_own(tmp_path: Path) -> None:
    folders = {folder_of(tmp_path, job, url) for job in ("a", "b") for url in ("http://x", "http://y")}
    assert len(folders) == 4
