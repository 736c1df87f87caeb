"""The invoice pipeline: generators send invoices, filters sort them into valid and invalid ones.

Every generator and filter is a process of its own; they meet only in three topics of the queue.
"""

ALL_TOPIC = "all-invoices"
VALID_TOPIC = "valid-invoices"
INVALID_TOPIC = "invalid-invoices"
