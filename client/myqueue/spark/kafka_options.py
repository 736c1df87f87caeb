"""Options of Spark's Kafka source and sink that have another name here, or none: what to write instead. Pure."""

from collections.abc import Mapping

_URL = "write option url, the address of the cluster: 'http://host'"
_TLS = "write option url with https; the load balancer in front of the cluster decides who may connect"
_CONSUMER = "write option consumer: the cursors of the consumer of that name follow the stream"
_TIMEOUT = "write option timeoutMs, how long a cluster that does not answer is asked again"
_ALWAYS = "leave it out: a write is always acknowledged by a majority of the replicas and stored once"

# By the name in lower case; those that end with a dot are prefixes.
_INSTEAD = {
    "kafka.bootstrap.servers": _URL,
    "kafka.group.id": _CONSUMER,
    "groupidprefix": _CONSUMER,
    "kafka.client.id": _CONSUMER,
    "kafka.auto.offset.reset": "write option startingOffsets",
    "kafka.isolation.level": "leave it out: only what is committed can be read",
    "kafka.max.partition.fetch.bytes": "write option fetchBytes",
    "kafka.fetch.max.bytes": "write option fetchBytes",
    "kafka.compression.type": "write option compression",
    "kafka.batch.size": "write option batchBytes",
    "kafka.acks": _ALWAYS,
    "kafka.retries": _ALWAYS,
    "kafka.enable.idempotence": _ALWAYS,
    "kafka.transactional.id": "leave it out: a stream is written exactly once",
    "kafka.security.protocol": _TLS,
    "kafka.sasl.": _TLS,
    "kafka.ssl.": _TLS,
    "kafkaconsumer.polltimeoutms": _TIMEOUT,
    "kafka.request.timeout.ms": _TIMEOUT,
    "fetchoffset.numretries": _TIMEOUT,
    "fetchoffset.retryintervalms": _TIMEOUT,
    "startingoffsetsbytimestampstrategy": "leave it out: a time after the last message means the end of its partition",
    "maxrecordsperpartition": "write option minPartitions",
    "kafka.": "leave it out: there are no options of a Kafka client here",
}


def written_instead(option: str) -> str | None:
    """What a user of Spark's Kafka source writes here instead; None if it has no such option."""
    name = option.lower()
    if name in _INSTEAD:
        return _INSTEAD[name]
    return next(
        (advice for prefix, advice in _INSTEAD.items() if prefix.endswith(".") and name.startswith(prefix)), None
    )


def unknown_option(given: Mapping[str, str], known: tuple[str, ...], what: str) -> str | None:
    """The error of the first option that is not known; `what` is a read or a write."""
    names = {name.lower() for name in known}
    unknown = sorted(name for name in given if name.lower() not in names)
    if not unknown:
        return None
    of_kafka = sorted(unknown, key=lambda name: name.lower() != "kafka.bootstrap.servers")
    for name in of_kafka:
        if advice := written_instead(name):
            return f"option {name} is Kafka's; {advice}"
    return f"option {unknown[0]} is not known; {what} takes {', '.join(known)}"
