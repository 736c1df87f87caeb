"""HTTP header names of the contract."""

REQUEST_ID = "X-Request-Id"  # set by the load balancer on every request, handed on over every hop
REAL_IP = "X-Real-IP"  # the client's address, set by the load balancer on every request
ELAPSED = "X-Myqueue-Elapsed"  # seconds that the load balancer has had the request: it may have waited elsewhere
IDEMPOTENCY_KEY = "Idempotency-Key"
TOKEN = "X-Myqueue-Token"  # session token: a read that carries it sees at least that write  # noqa: S105
SECRET = "X-Myqueue-Secret"  # cluster secret on internal calls  # noqa: S105
EPOCH = "X-Myqueue-Epoch"  # epoch of the write manager that gives a command
BATCH_TYPE = "application/vnd.myqueue.batch"  # a batch as in protocol.batch, then its dedup records
ARROW_TYPE = "application/vnd.apache.arrow.stream"
GRANT = "X-Myqueue-Grant"  # what the routing answer allows at the brokers
END_OFFSET = "X-Myqueue-End-Offset"  # of a fetch: committed end as far as the replica knows
BEGINNING_OFFSET = "X-Myqueue-Beginning-Offset"
