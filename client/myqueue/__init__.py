"""Python library for myqueue, the message log that speaks plain HTTP."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from myqueue.argument_checks import WrongType, WrongValue
from myqueue.delivery import Deliveries, Delivery, DeliveryTimeout, Span
from myqueue.message import Message, Receipt, TopicPartition
from myqueue.protocol.errors import (
    BrokerNotFound,
    ConsumerNotFound,
    DiskFull,
    Forbidden,
    GrantInvalid,
    IdempotencyConflict,
    InternalError,
    InvalidRequest,
    ManagerUnavailable,
    MetadataUnavailable,
    MethodNotAllowed,
    MyQueueError,
    NoLeader,
    NotLeader,
    NotMyQueue,
    NoTopics,
    OffsetOutOfRange,
    Overloaded,
    PartitionNotFound,
    PastEnd,
    ProducerFenced,
    ProducerNotFound,
    RegistrationConflict,
    RequestTimeout,
    RouteNotFound,
    SequenceGap,
    StaleCommit,
    StaleLease,
    TooLarge,
    TooManyRequests,
    TopicExists,
    TopicNotFound,
    Unauthorized,
    Unavailable,
    UnknownProducer,
    UnsupportedCompression,
    UnsupportedMediaType,
    UpstreamFailed,
    UpstreamTimeout,
)
from myqueue.version import VERSION as __version__

if TYPE_CHECKING:
    from myqueue.admin import Admin
    from myqueue.compat import ApiHandler, MyConsumer, MyProducer, ProducerRecord, Properties
    from myqueue.consumer import Consumer
    from myqueue.consumer_core import ConsumerClosed, ForkedConsumer
    from myqueue.descriptions import (
        Bounds,
        BrokerInfo,
        ClusterInfo,
        ConsumerInfo,
        DatabaseInfo,
        Explained,
        ExplainedConsumer,
        Lag,
        ManagerInfo,
        NamedLag,
        PartitionInfo,
        PartitionLag,
        Readiness,
        TopicInfo,
        WorstLag,
        WriteManagerInfo,
        WriterInfo,
    )
    from myqueue.deserializing import DeserializationError
    from myqueue.http_connection import NoResponse, NotConnected, NotHttpServer, TlsFailed
    from myqueue.idempotent_message import DeliveryExpired
    from myqueue.poll_interval import MaxPollIntervalExceeded
    from myqueue.producer import Producer
    from myqueue.reader import ForkedReader, Reader, ReaderClosed
    from myqueue.serialization import (
        SerializationError,
        arrow_deserializer,
        arrow_serializer,
        json_deserializer,
        json_serializer,
        pydantic_deserializer,
        pydantic_serializer,
        table_of,
        table_values,
    )
    from myqueue.start_position import Start
    from myqueue.topic_senders import ForkedProducer, ProducerClosed
    from myqueue.transport import RetryPolicy, Timeouts

# Servers import only myqueue.protocol, which runs this file first: modules with the HTTP client are loaded on first
# use, so that servers do not load them.
_LOADED_ON_USE = {
    "admin": "Admin",
    "compat": "ApiHandler MyConsumer MyProducer ProducerRecord Properties",
    "consumer": "Consumer",
    "consumer_core": "ConsumerClosed ForkedConsumer",
    "http_connection": "NoResponse NotConnected NotHttpServer TlsFailed",
    "idempotent_message": "DeliveryExpired",
    "descriptions": "Bounds BrokerInfo ClusterInfo ConsumerInfo DatabaseInfo Explained ExplainedConsumer "
    "Lag ManagerInfo NamedLag PartitionInfo PartitionLag Readiness TopicInfo WorstLag WriteManagerInfo WriterInfo",
    "deserializing": "DeserializationError",
    "poll_interval": "MaxPollIntervalExceeded",
    "producer": "Producer",
    "reader": "ForkedReader Reader ReaderClosed",
    "serialization": "SerializationError arrow_deserializer arrow_serializer json_deserializer json_serializer "
    "pydantic_deserializer pydantic_serializer table_of table_values",
    "topic_senders": "ForkedProducer ProducerClosed",
    "transport": "RetryPolicy Timeouts",
    "start_position": "Start",
}
_MODULES = {name: f"myqueue.{module}" for module, names in _LOADED_ON_USE.items() for name in names.split()}

__all__ = [
    "Admin",
    "ApiHandler",
    "Bounds",
    "BrokerInfo",
    "BrokerNotFound",
    "ClusterInfo",
    "Consumer",
    "ConsumerClosed",
    "ConsumerInfo",
    "ConsumerNotFound",
    "DatabaseInfo",
    "Deliveries",
    "Delivery",
    "DeliveryExpired",
    "DeliveryTimeout",
    "DeserializationError",
    "DiskFull",
    "Explained",
    "ExplainedConsumer",
    "Forbidden",
    "ForkedConsumer",
    "ForkedProducer",
    "ForkedReader",
    "GrantInvalid",
    "IdempotencyConflict",
    "InternalError",
    "InvalidRequest",
    "Lag",
    "ManagerInfo",
    "ManagerUnavailable",
    "MaxPollIntervalExceeded",
    "Message",
    "MetadataUnavailable",
    "MethodNotAllowed",
    "MyConsumer",
    "MyProducer",
    "MyQueueError",
    "NamedLag",
    "NoLeader",
    "NoResponse",
    "NoTopics",
    "NotConnected",
    "NotHttpServer",
    "NotLeader",
    "NotMyQueue",
    "OffsetOutOfRange",
    "Overloaded",
    "PartitionInfo",
    "PartitionLag",
    "PartitionNotFound",
    "PastEnd",
    "Producer",
    "ProducerClosed",
    "ProducerFenced",
    "ProducerNotFound",
    "ProducerRecord",
    "Properties",
    "Reader",
    "ReaderClosed",
    "Readiness",
    "Receipt",
    "RegistrationConflict",
    "RequestTimeout",
    "RetryPolicy",
    "RouteNotFound",
    "SequenceGap",
    "SerializationError",
    "Span",
    "StaleCommit",
    "StaleLease",
    "Start",
    "Timeouts",
    "TlsFailed",
    "TooLarge",
    "TooManyRequests",
    "TopicExists",
    "TopicInfo",
    "TopicNotFound",
    "TopicPartition",
    "Unauthorized",
    "Unavailable",
    "UnknownProducer",
    "UnsupportedCompression",
    "UnsupportedMediaType",
    "UpstreamFailed",
    "UpstreamTimeout",
    "WorstLag",
    "WriteManagerInfo",
    "WriterInfo",
    "WrongType",
    "WrongValue",
    "__version__",
    "arrow_deserializer",
    "arrow_serializer",
    "json_deserializer",
    "json_serializer",
    "pydantic_deserializer",
    "pydantic_serializer",
    "table_of",
    "table_values",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'myqueue' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
