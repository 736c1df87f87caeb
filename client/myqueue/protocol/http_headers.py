"""HTTP header names of the contract."""

REQUEST_ID = "X-Request-Id"  # set by the load balancer on every request, forwarded on every hop
REAL_IP = "X-Real-IP"  # the client's address, set by the load balancer on every request
ELAPSED = "X-Myqueue-Elapsed"  # seconds since the load balancer got the request: it may have tried another server
IDEMPOTENCY_KEY = "Idempotency-Key"
TOKEN = "X-Myqueue-Token"  # session token: a read that carries it sees at least that write  # noqa: S105
SECRET = "X-Myqueue-Secret"  # cluster secret on internal calls  # noqa: S105
EPOCH = "X-Myqueue-Epoch"  # epoch of the write manager that sends a command, or answers on its internal listener
BATCH_TYPE = "application/vnd.myqueue.batch"  # a batch as in protocol.batch, then its dedup records
ARROW_TYPE = "application/vnd.apache.arrow.stream"
NEXT = "X-Myqueue-Next"  # of a table that is a page: ask with `after` set to this for the next one
EVENTS_TYPE = "text/event-stream"
NDJSON_TYPE = "application/x-ndjson"
LAST_EVENT_ID = "Last-Event-ID"  # what an EventSource has received last
CSV_TYPE = "text/csv"
SVG_TYPE = "image/svg+xml"
GRANT = "X-Myqueue-Grant"  # the grant of the routing response
END_OFFSET = "X-Myqueue-End-Offset"  # of a fetch: the replica's high watermark
BEGINNING_OFFSET = "X-Myqueue-Beginning-Offset"
