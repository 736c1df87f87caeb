"""A job's checkpoint: which query it is of and what its micro-batches read, from the folder that Spark keeps of it."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """As Spark wrote it down before it was read: the same however often it is repeated."""

    ends: dict[tuple[str, int], int]  # the next offset of each topic and partition
    topic_ids: dict[str, UUID]
    planned_ms: int


def folder_of(root: Path, job: str, url: str) -> Path:
    """One for each job and cluster: offsets of another cluster mean nothing."""
    return root / "checkpoints" / f"{job}-{hashlib.sha256(url.encode()).hexdigest()[:12]}"


def query_id(folder: Path) -> str:
    """Spark writes it when the query first starts; a new folder is a new query."""
    found: str = json.loads((folder / "metadata").read_text())["id"]
    return found


def micro_batch(folder: Path, number: int) -> MicroBatch:
    return parse((folder / "offsets" / str(number)).read_text())


def last_finished(folder: Path) -> MicroBatch | None:
    numbers = [int(path.name) for path in (folder / "commits").glob("*") if path.name.isdecimal()]
    return micro_batch(folder, max(numbers)) if numbers else None


def parse(text: str) -> MicroBatch:
    """Spark's file of one micro-batch: a version, its own metadata, then one line for each source; there is one."""
    _, metadata, offsets = text.splitlines()[:3]
    ends: dict[tuple[str, int], int] = {}
    topic_ids: dict[str, UUID] = {}
    for name, value in json.loads(offsets).items():
        if isinstance(value, str):
            topic_ids[name] = UUID(value)
        else:
            topic, _, partition = name.rpartition("/")
            ends[topic, int(partition)] = value
    return MicroBatch(ends, topic_ids, json.loads(metadata)["batchTimestampMs"])
