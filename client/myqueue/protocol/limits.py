"""Limits that both ends must agree on, and the rules for names."""

import re

MAX_MESSAGE_BYTES = 1 << 20
MAX_BATCH_BYTES = 4 << 20
MAX_BODY_BYTES = 8 << 20
MAX_PARTITIONS_PER_TOPIC = 256
MAX_PARTITIONS_PER_CLUSTER = 1000
MAX_WAIT_MS = 30_000
MAX_KEY_BYTES = 1 << 16
MAX_IDEMPOTENCY_KEY_CHARS = 200
MAX_CLIENT_NAME_CHARS = 200

DEFAULT_PARTITIONS = 4
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
