"""Limits that both ends must agree on, and the rules for names."""

import re

MAX_MESSAGE_BYTES = 1 << 20
MAX_BATCH_BYTES = 4 << 20
MAX_UNCOMPRESSED_BYTES = 32 << 20  # of a compressed batch
MAX_BODY_BYTES = 8 << 20
MAX_FETCH_BYTES = 8 << 20
MAX_LISTED_MESSAGES = 10_000  # in one response of the log API
MAX_POSTED_MESSAGES = 10_000  # in one request of the log API
MAX_PAGE = 10_000  # of consumers in one response
MAX_PARTITIONS_PER_TOPIC = 256
MAX_PARTITIONS_PER_CLUSTER = 1000
MAX_WAIT_MS = 30_000
MAX_KEY_BYTES = 1 << 16
MAX_IDEMPOTENCY_KEY_CHARS = 200
MAX_CLIENT_NAME_CHARS = 200
MAX_HOST_CHARS = 255
MAX_ASSIGNMENT_CHARS = 64
MAX_EVENT_ID_CHARS = 6000  # offsets of 19 digits in 256 partitions
MAX_HEADERS = 100  # of a message
MAX_HEADER_KEY_CHARS = 200
MAX_PRODUCER_EPOCH = (1 << 16) - 1
MAX_MEASURED_PARTITIONS = MAX_PARTITIONS_PER_CLUSTER  # in one post of results
MAX_MEASURED_MINUTES = 10_000
MAX_MEASURED_LAGS = 10_000
MAX_STATS_MINUTES = 7 * 24 * 60  # that one request may go back
MAX_STATS_ROWS = 20_000  # of history or of minutes in one response
MAX_STATS_RUNS = 1000  # in one response

DEFAULT_FETCH_BYTES = 1 << 20
DEFAULT_LISTED_MESSAGES = 100
DEFAULT_POLLED_MESSAGES = 500
DEFAULT_PAGE = 1000

DEFAULT_PARTITIONS = 4
STAGING_PREFIX = "_staged."  # of topics in which Spark's streams stage what they write; listed only on request
DEFAULT_REPLICATION = 3

TOPIC_NAME_PATTERN = r"^[A-Za-z0-9._-]{1,200}\Z"
_TOPIC_NAME = re.compile(TOPIC_NAME_PATTERN)


def topic_name_problem(name: str) -> str | None:
    """Why this is not a topic name, or None if it is one."""
    if not _TOPIC_NAME.match(name):
        return "topic name must be 1 to 200 characters of A-Z a-z 0-9 . _ -"
    if name in (".", ".."):
        return "topic name must not be '.' or '..'"
    if name.startswith("__"):
        return "topic names starting with '__' are reserved"
    return None
