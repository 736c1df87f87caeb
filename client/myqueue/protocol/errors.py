"""Every public error: one class each, with its stable code, HTTP status and whether a retry can help.

`error_code` is the HTTP status times 100 plus a number, the same as Kafka REST's where it has one. Servers encode an
error in one place (`to_body`), the library raises the same class again (`from_body`).
"""

from typing import Any, ClassVar, Literal

Outcome = Literal["not_written", "unknown"]


class MyQueueError(Exception):
    """Base of all errors. The message is written for users."""

    error_code: ClassVar[int] = 50001
    http_status: ClassVar[int] = 500
    retriable: ClassVar[bool] = False
    default_message: ClassVar[str] = "internal error"
    default_outcome: ClassVar[Outcome | None] = None

    def __init__(
        self,
        message: str | None = None,
        *,
        outcome: Outcome | None = None,
        retry_after_s: float | None = None,
        request_id: str | None = None,
        details: dict[str, Any] | None = None,
    ) -> None:
        self.message = message or self.default_message
        self.outcome = outcome if outcome is not None else self.default_outcome
        self.retry_after_s = retry_after_s
        self.request_id = request_id
        self.details = details or {}
        super().__init__(self.message)

    def reword(self, message: str) -> None:
        self.message = message
        self.args = (message,)

    def to_body(self, request_id: str | None) -> dict[str, Any]:
        body: dict[str, Any] = {
            "status": "failure",
            "error_code": self.error_code,
            "message": self.message,
            "retriable": self.retriable,
        }
        if self.outcome is not None:
            body["outcome"] = self.outcome
        body["request_id"] = request_id
        if self.details:
            body["details"] = self.details
        return body


class InvalidRequest(MyQueueError):
    """The request breaks the API's rules; the message names the field."""

    error_code, http_status, default_message = 40001, 400, "invalid request"
    default_outcome = "not_written"


class Unauthorized(MyQueueError):
    """The call carries no valid credentials."""

    error_code, http_status, default_message = 40101, 401, "missing or wrong credentials"
    default_outcome = "not_written"


class GrantInvalid(MyQueueError):
    """The grant of the data plane is missing, wrong or expired: ask for the routing again."""

    error_code, http_status, retriable, default_message = (
        40102,
        401,
        True,
        "the grant is missing, wrong or expired; ask /v1/routing for a new one",
    )
    default_outcome = "not_written"


class Forbidden(MyQueueError):
    """The credentials do not allow this."""

    error_code, http_status, default_message = 40301, 403, "the grant does not cover this"
    default_outcome = "not_written"


class CrossOrigin(MyQueueError):
    """A page of another origin wanted to change something, through the browser of somebody who has opened it."""

    error_code, http_status, default_message = 40302, 403, "a page of another origin may not do this"
    default_outcome = "not_written"


class RouteNotFound(MyQueueError):
    """No such path."""

    error_code, http_status, default_message = 40400, 404, "no such path"
    default_outcome = "not_written"


class TopicNotFound(MyQueueError):
    error_code, http_status, default_message = 40401, 404, "topic not found"
    default_outcome = "not_written"


class PartitionNotFound(MyQueueError):
    error_code, http_status, default_message = 40402, 404, "partition not found"
    default_outcome = "not_written"


class ConsumerNotFound(MyQueueError):
    """No such consumer, or it was registered for another topic."""

    error_code, http_status, default_message = 40403, 404, "Consumer not found"
    default_outcome = "not_written"


class ProducerNotFound(MyQueueError):
    """No such producer, or it was registered for another topic."""

    error_code, http_status, default_message = 40404, 404, "Producer not found"
    default_outcome = "not_written"


class NoTopics(MyQueueError):
    error_code, http_status, default_message = 40405, 404, "No topics found!"


class BrokerNotFound(MyQueueError):
    """No broker of that id is registered. A broker that gets this must register again."""

    error_code, http_status, default_message = 40406, 404, "broker not found"
    default_outcome = "not_written"


class RunNotFound(MyQueueError):
    """No run of that id is known; old ones are forgotten."""

    error_code, http_status, default_message = 40407, 404, "run not found"
    default_outcome = "not_written"


class MethodNotAllowed(MyQueueError):
    error_code, http_status, default_message = 40500, 405, "method not allowed"
    default_outcome = "not_written"


class RequestTimeout(MyQueueError):
    """The client did not send its request in time."""

    error_code, http_status, retriable, default_message = 40800, 408, True, "request timed out"
    default_outcome = "not_written"


class TopicExists(MyQueueError):
    error_code, http_status, default_message = 40901, 409, "topic already exists!"
    default_outcome = "not_written"


class RegistrationConflict(MyQueueError):
    """The name or id is taken by a registration with other settings."""

    error_code, http_status, default_message = 40902, 409, "already registered with other settings"
    default_outcome = "not_written"


class IdempotencyConflict(MyQueueError):
    """The Idempotency-Key was used before with another request."""

    error_code, http_status, default_message = 40903, 409, "Idempotency-Key was used before with another message"
    default_outcome = "not_written"


class SequenceGap(MyQueueError):
    """An idempotent producer's batch does not follow the one before it."""

    error_code, http_status, default_message = (
        40904,
        409,
        "the batch's sequence does not follow the producer's last one",
    )
    retriable = True  # in order: the batch before it may have been lost on its way
    default_outcome = "not_written"


class ProducerFenced(MyQueueError):
    """A newer epoch of the same producer has written."""

    error_code, http_status, default_message = 40905, 409, "a newer instance of this producer has taken over"
    default_outcome = "not_written"


class UnknownProducer(MyQueueError):
    """The producer has left the partition's dedupe window, so a repeated batch cannot be recognized."""

    error_code, http_status, default_message = 40906, 409, "unknown_producer: register again with a new epoch"
    default_outcome = "not_written"


class StaleCommit(MyQueueError):
    """The consumer's cursor is already past that offset; details have its offset."""

    error_code, http_status, default_message = 40907, 409, "the cursor is already past that offset"
    default_outcome = "not_written"


class StaleLease(MyQueueError):
    """The partition is leased to another member, or was sought since: poll again."""

    error_code, http_status, default_message = 40908, 409, "the lease on the partition is no longer held; poll again"
    default_outcome = "not_written"


class JobRunning(MyQueueError):
    """Another run of the job is active; details have its run_id, holder and started_at."""

    error_code, http_status, default_message = 40909, 409, "another run of the job is active"
    default_outcome = "not_written"


class RunEnded(MyQueueError):
    """The run has ended, or its lease has expired; details have its outcome."""

    error_code, http_status, default_message = 40910, 409, "the run has ended; begin another one"
    default_outcome = "not_written"


class TickTaken(MyQueueError):
    """The job has begun a run for that time, or for a later one; details have its run_id and outcome."""

    error_code, http_status, default_message = 40911, 409, "the job was run for that time already"
    default_outcome = "not_written"


class AnotherQuery(MyQueueError):
    """The batch continues another checkpoint than the job's; details have the job's query_id and batch_id."""

    error_code, http_status, default_message = (
        40912,
        409,
        "the figures of this job were added up by another query, whose checkpoint is elsewhere; run the job with that"
        " checkpoint (MYQUEUE_SPARK_DIR), or start over with an empty one",
    )
    default_outcome = "not_written"


class StaleDataFolder(MyQueueError):
    """A broker's data folder is an older copy; details have the starts and the sequence that are known of it."""

    error_code, http_status, default_message = (
        40913,
        409,
        "this data folder is an older copy: it was restored from a backup, or another process runs on a copy of it",
    )
    default_outcome = "not_written"


class StaleEpoch(MyQueueError):
    """A broker has taken commands of a newer write manager; details have the highest epoch that it knows."""

    error_code, http_status, default_message = (
        40914,
        409,
        "this broker takes commands of a newer write manager; its epoch is in the details",
    )
    default_outcome = "not_written"


class OffsetOutOfRange(MyQueueError):
    """The offset lies below the first one that is still stored."""

    error_code, http_status, default_message = 41001, 410, "offset is below the first stored offset"


class TopicReplaced(MyQueueError):
    """The event id is of a topic that was deleted, and another one has its name now."""

    error_code, http_status, default_message = (
        41002,
        410,
        "the event id is of a topic that was deleted and made anew; connect without it",
    )
    default_outcome = "not_written"


class TooLarge(MyQueueError):
    error_code, http_status, default_message = 41301, 413, "request is too large"
    default_outcome = "not_written"


class UnsupportedMediaType(MyQueueError):
    error_code, http_status, default_message = 41501, 415, "Content-Type must be application/json"
    default_outcome = "not_written"


class UnsupportedCompression(MyQueueError):
    """The batch is compressed in a way that is not known here."""

    error_code, http_status, default_message = (
        41502,
        415,
        "compression not supported; use lz4, zstd or none",
    )
    default_outcome = "not_written"


class NotLeader(MyQueueError):
    """This broker does not lead the partition; details carry the leader's id when it is known."""

    error_code, http_status, retriable, default_message = 42101, 421, True, "this broker does not lead the partition"
    default_outcome = "not_written"


class PastEnd(MyQueueError):
    """The offset lies beyond the end of the partition."""

    error_code, http_status, default_message = 42201, 422, "the offset is past the end of the partition"
    default_outcome = "not_written"


class TooManyRequests(MyQueueError):
    error_code, http_status, retriable, default_message = 42901, 429, True, "too many requests"
    default_outcome = "not_written"


class InternalError(MyQueueError):
    """A defect of the server. The request id finds the details in its log."""

    error_code, http_status, default_message = 50001, 500, "internal error; the request id finds it in the logs"
    default_outcome = "unknown"


class UpstreamFailed(MyQueueError):
    """The load balancer lost the server behind it while the request was in flight."""

    error_code, http_status, retriable, default_message = 50201, 502, True, "the server behind the load balancer failed"
    default_outcome = "unknown"


class NotMyQueue(MyQueueError):
    """What answers at the URL is another server; the library raises this, no server sends it."""

    error_code, http_status, default_message = 50202, 502, "what answers is not myqueue"
    default_outcome = "unknown"


class Unavailable(MyQueueError):
    """A part of the system that this request needs does not answer right now."""

    error_code, http_status, retriable, default_message = 50301, 503, True, "temporarily unavailable"


class NoLeader(Unavailable):
    """No broker leads the partition right now."""

    error_code, default_message = 50302, "the partition has no leader right now"


class MetadataUnavailable(Unavailable):
    """PostgreSQL does not answer or cannot confirm a write."""

    error_code, default_message = 50303, "the metadata database is not available right now"


class ManagerUnavailable(Unavailable):
    """No healthy manager can take the request."""

    error_code, default_message = 50304, "no healthy manager can take the request"


class Overloaded(Unavailable):
    """The server has its maximum of requests in flight."""

    error_code, default_message = 50305, "the server is at its limit of concurrent requests"
    default_outcome = "not_written"


class StandbyManager(ManagerUnavailable):
    """This write manager is the standby: another one is active, or will be in a moment."""

    error_code, default_message = 50306, "this write manager is a standby"
    default_outcome = "not_written"


class UpstreamTimeout(MyQueueError):
    """The load balancer timed out waiting for the server behind it."""

    error_code, http_status, retriable, default_message = (
        50401,
        504,
        True,
        "the server behind the load balancer is slow",
    )
    default_outcome = "unknown"


class DiskFull(MyQueueError):
    """The broker keeps its last free space for recovery; reads go on."""

    error_code, http_status, retriable, default_message = 50701, 507, True, "the broker's disk is almost full"
    default_outcome = "not_written"


def _all_subclasses(cls: type[MyQueueError]) -> list[type[MyQueueError]]:
    return [cls, *(c for sub in cls.__subclasses__() for c in _all_subclasses(sub))]


BY_CODE: dict[int, type[MyQueueError]] = {cls.error_code: cls for cls in _all_subclasses(MyQueueError)}


def from_body(body: object, http_status: int, retry_after_s: float | None = None) -> MyQueueError:
    """The error of a server's response. Responses of other servers become the nearest class by status."""
    if isinstance(body, dict) and isinstance(body.get("error_code"), int):
        cls = BY_CODE.get(body["error_code"], MyQueueError)
        return cls(
            str(body.get("message") or cls.default_message),
            outcome=body.get("outcome"),
            retry_after_s=retry_after_s,
            request_id=body.get("request_id"),
            details=body.get("details"),
        )
    if http_status in (502, 504):
        return (UpstreamFailed if http_status == 502 else UpstreamTimeout)(retry_after_s=retry_after_s)
    if http_status == 503:
        return Unavailable(f"HTTP {http_status} without a myqueue error body", retry_after_s=retry_after_s)
    return MyQueueError(f"HTTP {http_status} without a myqueue error body")
