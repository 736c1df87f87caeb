"""The options of reads and writes, checked before any request. Pure but for the default of the address."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from myqueue.cluster_url import base_url, normalized_url
from myqueue.protocol.batch import CODEC_NONE, CODECS
from myqueue.protocol.errors import InvalidRequest
from myqueue.protocol.limits import (
    MAX_BATCH_BYTES,
    MAX_CLIENT_NAME_CHARS,
    MAX_FETCH_BYTES,
    MAX_PARTITIONS_PER_TOPIC,
    STAGING_PREFIX,
    topic_name_problem,
)
from myqueue.spark.kafka_options import unknown_option
from myqueue.spark.offsets import (
    EARLIEST,
    LATEST,
    AtTimestamp,
    EarliestOrLatest,
    OffsetLimit,
    PartitionTimestamps,
    SpecificOffsets,
)

DEFAULT_FETCH_BYTES = 4 << 20
DEFAULT_TIMEOUT_MS = 60_000
STAGED = STAGING_PREFIX
MICRO_BATCH = "microBatch"  # set by foreach_batch.to_topic, for no one else to set
QUERY_ID = "sql.streaming.queryId"  # a property of a stream's tasks and driver thread; constant for a checkpoint

_SUBSCRIPTIONS = ("subscribe", "assign", "subscribePattern")
_READ_OPTIONS = (
    "url",
    *_SUBSCRIPTIONS,
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "failOnDataLoss",
    "failOnNoLeader",
    "includeHeaders",
    "consumer",
    "fetchBytes",
    "timeoutMs",
)
DEFAULT_BATCH_BYTES = 1 << 20
LARGEST_BATCH = MAX_BATCH_BYTES - (64 << 10)  # the rest is for the batch's header and schema
DEFAULT_STAGING_RETENTION_MS = 24 * 3600 * 1000
LEAST_STAGING_RETENTION_MS = 60_000  # longer than one micro-batch, from staging to publishing
MAX_INLINE_BYTES = 64 << 10

_WRITE_OPTIONS = ("url", "topic", "createTopics", "partitions", "compression", "batchBytes", "stagingRetentionMs")
_OF_SPARK = ("checkpointLocation", "queryName", "path")  # Spark passes its own options on
_SHARED = "spark"  # names the staging topic of all queries with a column of topics
_MAX_NUMBER = (1 << 63) - 1
_MAX_DIGITS = 19
_DEFAULT_TRIGGER_DELAY_S = 15 * 60.0
_DELAY = re.compile(r"([0-9]{1,15})\s*(ms|s|m|min|h|d)?")
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
T = TypeVar("T")
D = TypeVar("D")


@dataclass(frozen=True, slots=True)
class Subscription:
    """Named topics, or all whose whole name matches a pattern."""

    option: str  # the one that it was given by
    topics: tuple[str, ...] = ()
    partitions: Mapping[str, tuple[int, ...]] | None = None  # by topic; None: all
    pattern: str | None = None

    def includes(self, topic: str) -> bool:
        if self.pattern is None:
            return topic in self.topics
        return not topic.startswith(STAGED) and re.fullmatch(self.pattern, topic) is not None


@dataclass(frozen=True, slots=True)
class ReadOptions:
    url: str
    subscription: Subscription
    starting: OffsetLimit
    ending: OffsetLimit
    max_offsets: int | None
    min_offsets: int | None
    max_trigger_delay_s: float
    min_partitions: int | None
    fail_on_data_loss: bool
    fail_on_no_leader: bool
    include_headers: bool
    consumer: str | None
    fetch_bytes: int
    timeout_s: float  # of retries of one request


def batch_read_options(given: Mapping[str, str]) -> ReadOptions:
    only_of_streams = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "consumer", "failOnNoLeader")
    _refuse(given, "a batch read", *only_of_streams)
    options = read_options(given)
    if options.starting == EarliestOrLatest(LATEST):
        raise InvalidRequest("option startingOffsets: a batch read cannot start at latest; it would read nothing")
    if options.ending == EarliestOrLatest(EARLIEST):
        raise InvalidRequest("option endingOffsets: a batch read cannot end at earliest; it would read nothing")
    return options


def stream_read_options(given: Mapping[str, str]) -> ReadOptions:
    _refuse(given, "a stream", "endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
    options = read_options(given, start=LATEST)
    if (
        options.min_offsets is not None
        and options.max_offsets is not None
        and options.min_offsets > options.max_offsets
    ):
        raise InvalidRequest("option minOffsetsPerTrigger is more than maxOffsetsPerTrigger")
    if not options.fail_on_no_leader and options.starting != EarliestOrLatest(EARLIEST):
        raise InvalidRequest(
            "option failOnNoLeader: false takes startingOffsets earliest; where else to start in a partition without a"
            " leader is not known"
        )
    return options


def read_options(given: Mapping[str, str], *, start: int = EARLIEST) -> ReadOptions:
    """`start`: the default of startingOffsets."""
    if unknown := unknown_option(given, _READ_OPTIONS, "a read"):
        raise InvalidRequest(unknown)
    values = {name.lower(): value for name, value in given.items()}
    starting, ending = _position_of(values, "starting", start), _position_of(values, "ending", LATEST)
    if isinstance(starting, AtTimestamp) and isinstance(ending, AtTimestamp) and starting.ms > ending.ms:
        raise InvalidRequest("option startingTimestamp is later than endingTimestamp")
    return ReadOptions(
        url=url_option(values),
        subscription=_subscription(values),
        starting=starting,
        ending=ending,
        max_offsets=read_option(values, "maxOffsetsPerTrigger", whole_number(1), None),
        min_offsets=read_option(values, "minOffsetsPerTrigger", whole_number(1), None),
        max_trigger_delay_s=read_option(values, "maxTriggerDelay", _delay_s, _DEFAULT_TRIGGER_DELAY_S),
        min_partitions=read_option(values, "minPartitions", whole_number(1), None),
        fail_on_data_loss=read_option(values, "failOnDataLoss", _boolean, True),
        fail_on_no_leader=read_option(values, "failOnNoLeader", _boolean, True),
        include_headers=read_option(values, "includeHeaders", _boolean, False),
        consumer=read_option(values, "consumer", _consumer, None),
        fetch_bytes=read_option(values, "fetchBytes", whole_number(1, MAX_FETCH_BYTES), DEFAULT_FETCH_BYTES),
        timeout_s=read_option(values, "timeoutMs", whole_number(1), DEFAULT_TIMEOUT_MS) / 1000,
    )


def read_option(values: Mapping[str, str], name: str, parse: Callable[[str], T], default: D) -> T | D:
    """Parses an option, by its lower-cased name; a ValueError of `parse` becomes InvalidRequest with that name."""
    text = values.get(name.lower())
    if text is None:
        return default
    try:
        return parse(text)
    except ValueError as error:
        raise InvalidRequest(f"option {name}: {error}") from error


def url_option(values: Mapping[str, str]) -> str:
    """The option, else the environment's MYQUEUE_URL."""
    given = read_option(values, "url", normalized_url, None)
    if given is not None:
        return given
    try:
        return base_url()
    except ValueError as error:
        raise InvalidRequest(f"option url is not given, and {error}") from error


def whole_number(least: int, most: int = _MAX_NUMBER) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (text.isascii() and text.isdecimal()) or len(text) > _MAX_DIGITS or not least <= int(text) <= most:
            range_ = f"{least} to {most}" if most < _MAX_NUMBER else f"{least} on"
            raise ValueError(f"takes a whole number from {range_}, not {text!r}")
        return int(text)

    return parse


def _position_of(values: Mapping[str, str], kind: str, default: int) -> OffsetLimit:
    parsers: dict[str, Callable[[str], OffsetLimit]] = {
        f"{kind}Offsets": _position,
        f"{kind}Timestamp": lambda text: AtTimestamp(whole_number(0)(text)),
        f"{kind}OffsetsByTimestamp": _timestamps,
    }
    present = [name for name in parsers if name.lower() in values]
    if len(present) > 1:
        raise InvalidRequest(f"options {' and '.join(present)}: give one of them")
    for name in present:
        return read_option(values, name, parsers[name], EarliestOrLatest(default))
    return EarliestOrLatest(default)


def _refuse(given: Mapping[str, str], where: str, *names: str) -> None:
    present = {name.lower() for name in given}
    for name in names:
        if name.lower() in present:
            raise InvalidRequest(f"option {name} means nothing in {where}")


def _subscription(values: Mapping[str, str]) -> Subscription:
    present = [name for name in _SUBSCRIPTIONS if name.lower() in values]
    if len(present) != 1:
        raise InvalidRequest(f"options {', '.join(_SUBSCRIPTIONS)}: give one of them, not {len(present)}")
    parse = {"subscribe": _subscribe, "assign": _assign, "subscribePattern": _pattern}[present[0]]
    found = read_option(values, present[0], parse, None)
    assert found is not None
    return found


def _subscribe(text: str) -> Subscription:
    topics = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for topic in topics:
        _check_topic(topic)
    return Subscription("subscribe", topics)


def _assign(text: str) -> Subscription:
    usage = 'takes JSON as {"orders":[0,1]}'
    given = _json_object(text, usage)
    partitions: dict[str, tuple[int, ...]] = {}
    for topic, numbers in given.items():
        _check_topic(topic)
        if not isinstance(numbers, list) or not numbers or not all(_is_number(number, 0) for number in numbers):
            raise ValueError(f"{topic}: {usage}")
        partitions[topic] = tuple(sorted(set(numbers)))
    if not partitions:
        raise ValueError(usage)
    return Subscription("assign", tuple(partitions), partitions)


def _pattern(text: str) -> Subscription:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is not a regular expression: {error}") from error
    return Subscription("subscribePattern", pattern=text)


def _position(text: str) -> OffsetLimit:
    usage = 'takes earliest, latest or JSON as {"orders":{"0":23,"1":-2}}'
    if text.strip().lower() in ("earliest", "latest"):
        return EarliestOrLatest(EARLIEST if text.strip().lower() == "earliest" else LATEST)
    # The progress of a query names the id of each topic too.
    topic_ids: dict[str, str] = {}
    return SpecificOffsets(_by_partition(text, usage, EARLIEST, topic_ids), topic_ids)


def _timestamps(text: str) -> PartitionTimestamps:
    return PartitionTimestamps(_by_partition(text, 'takes JSON as {"orders":{"0":1700000000000}}, in ms since 1970', 0))


def _by_partition(
    text: str, usage: str, least: int, topic_ids: dict[str, str] | None = None
) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for topic, numbers in _json_object(text, usage).items():
        _check_topic(topic)
        if not isinstance(numbers, dict):
            raise ValueError(f"{topic}: {usage}")  # noqa: TRY004 it is the text that is wrong
        for partition, number in numbers.items():
            if topic_ids is not None and partition == "id" and isinstance(number, str):
                topic_ids[topic] = number
                continue
            if not (partition.isascii() and partition.isdecimal()) or not _is_number(number, least):
                raise ValueError(f"{topic}/{partition}: {usage}")
            found.setdefault(topic, {})[int(partition)] = number
    return found


def _delay_s(text: str) -> float:
    match = _DELAY.fullmatch(text.strip().lower())
    if match is None:
        raise ValueError(f"takes a time as 500ms, 30s, 15m or 1h, not {text!r}")
    return int(match[1]) * _UNIT_S[match[2] or "ms"]


def _json_object(text: str, usage: str) -> dict[str, object]:
    try:
        given = json.loads(text)
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise ValueError(f"{usage}, not {text!r}")  # noqa: TRY004 it is the text that is wrong
    return given


def _check_topic(name: str) -> None:
    if problem := topic_name_problem(name):
        raise ValueError(f"{name!r}: {problem}")


def _is_number(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= _MAX_NUMBER


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"takes true or false, not {text!r}")
    return text.lower() == "true"


def _consumer(text: str) -> str:
    if not 1 <= len(text) <= MAX_CLIENT_NAME_CHARS or not text.isprintable():
        raise ValueError(f"takes a name of 1 to {MAX_CLIENT_NAME_CHARS} printable characters")
    return text


@dataclass(frozen=True, slots=True)
class WriteOptions:
    url: str
    topic: str | None  # None: each row names its own
    create_topics: bool
    partitions: int | None  # of a topic that is created; None: as many as the cluster gives it
    codec: int
    batch_bytes: int
    staging_retention_ms: int
    staging_retention_given: bool
    max_inline_bytes: int = MAX_INLINE_BYTES  # of a task in the manifest; it stages more than that itself

    @property
    def staging_topic(self) -> str:
        return STAGED + (self.topic or _SHARED)


def batch_write_options(given: Mapping[str, str]) -> WriteOptions:
    if any(name.lower() == "stagingretentionms" for name in given):
        raise InvalidRequest("option stagingRetentionMs means nothing in a batch write, which stages nothing")
    return write_options(given)


def stream_write_options(given: Mapping[str, str]) -> WriteOptions:
    options = write_options(given)
    if topic_name_problem(options.staging_topic):
        raise InvalidRequest(f"option topic: {options.topic!r} is too long for a stream, which adds {STAGED!r} to it")
    return options


def write_options(given: Mapping[str, str]) -> WriteOptions:
    if unknown := unknown_option(without(given, *_OF_SPARK), _WRITE_OPTIONS, "a write"):
        raise InvalidRequest(unknown)
    values = {name.lower(): value for name, value in given.items()}
    retention = whole_number(LEAST_STAGING_RETENTION_MS)
    return WriteOptions(
        url=url_option(values),
        topic=read_option(values, "topic", _topic, None),
        create_topics=read_option(values, "createTopics", _boolean, True),
        partitions=read_option(values, "partitions", whole_number(1, MAX_PARTITIONS_PER_TOPIC), None),
        codec=read_option(values, "compression", _codec, CODEC_NONE),
        batch_bytes=read_option(values, "batchBytes", whole_number(1, LARGEST_BATCH), DEFAULT_BATCH_BYTES),
        staging_retention_ms=read_option(values, "stagingRetentionMs", retention, DEFAULT_STAGING_RETENTION_MS),
        staging_retention_given="stagingretentionms" in values,
    )


def without(given: Mapping[str, str], *names: str) -> dict[str, str]:
    left_out = {name.lower() for name in names}
    return {name: value for name, value in given.items() if name.lower() not in left_out}


def target_problem(topic: str) -> str | None:
    """Why nothing can be written to a topic of this name."""
    if topic.startswith(STAGED):
        return f"topics starting with {STAGED!r} hold what streams have staged"
    return topic_name_problem(topic)


def _topic(text: str) -> str:
    if problem := target_problem(text):
        raise ValueError(problem)
    return text


def _codec(text: str) -> int:
    if text.lower() not in CODECS:
        raise ValueError(f"takes one of {', '.join(CODECS)}, not {text!r}")
    return CODECS[text.lower()]
