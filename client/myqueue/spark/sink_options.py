"""The options of a write, checked before anything is asked of the cluster. Pure but for the default of the address."""

from collections.abc import Mapping
from dataclasses import dataclass

from myqueue.protocol.batch import CODEC_NONE, CODECS
from myqueue.protocol.errors import InvalidRequest
from myqueue.protocol.limits import MAX_BATCH_BYTES, topic_name_problem
from myqueue.spark.options import STAGED, read_option, url_option, whole_number
from myqueue.spark.rows import target_problem

DEFAULT_BATCH_BYTES = 1 << 20
LARGEST_BATCH = MAX_BATCH_BYTES - (64 << 10)  # room for what describes the messages
DEFAULT_STAGING_RETENTION_MS = 24 * 3600 * 1000
LEAST_STAGING_RETENTION_MS = 60_000  # a micro-batch takes its time from its first staged batch to its last published

_KNOWN = ("url", "topic", "compression", "batchBytes", "stagingRetentionMs")
_OF_SPARK = ("checkpointLocation", "queryName", "path")  # it hands its own on
_SHARED = "spark"  # names the staging topic of all queries that have a column of topics


@dataclass(frozen=True, slots=True)
class SinkOptions:
    url: str
    topic: str | None  # None: each row names its own
    codec: int
    batch_bytes: int
    staging_retention_ms: int
    staging_retention_given: bool

    @property
    def staging_topic(self) -> str:
        return STAGED + (self.topic or _SHARED)


def batch_options(given: Mapping[str, str]) -> SinkOptions:
    if any(name.lower() == "stagingretentionms" for name in given):
        raise InvalidRequest("option stagingRetentionMs means nothing in a batch write, which stages nothing")
    return sink_options(given)


def stream_options(given: Mapping[str, str]) -> SinkOptions:
    options = sink_options(given)
    if topic_name_problem(options.staging_topic):
        raise InvalidRequest(f"option topic: {options.topic!r} is too long for a stream, which adds {STAGED!r} to it")
    return options


def sink_options(given: Mapping[str, str]) -> SinkOptions:
    known = {name.lower() for name in (*_KNOWN, *_OF_SPARK)}
    if unknown := sorted(name for name in given if name.lower() not in known):
        raise InvalidRequest(f"option {unknown[0]} is not known; a write takes {', '.join(_KNOWN)}")
    values = {name.lower(): value for name, value in given.items()}
    retention = whole_number(LEAST_STAGING_RETENTION_MS)
    return SinkOptions(
        url=url_option(values),
        topic=read_option(values, "topic", _topic, None),
        codec=read_option(values, "compression", _codec, CODEC_NONE),
        batch_bytes=read_option(values, "batchBytes", whole_number(1, LARGEST_BATCH), DEFAULT_BATCH_BYTES),
        staging_retention_ms=read_option(values, "stagingRetentionMs", retention, DEFAULT_STAGING_RETENTION_MS),
        staging_retention_given="stagingretentionms" in values,
    )


def _topic(text: str) -> str:
    if problem := target_problem(text):
        raise ValueError(problem)
    return text


def _codec(text: str) -> int:
    if text.lower() not in CODECS:
        raise ValueError(f"takes one of {', '.join(CODECS)}, not {text!r}")
    return CODECS[text.lower()]
