"""`python -m tests.integration.slow_reads`: a broker on a disk that answers no read of stored batches.

Every read adds a byte to the file named by SLOW_READS, then waits for good.
"""

import os
import sys
import threading
from pathlib import Path

from broker.replica import Replica
from broker.storage.entry import Entry

COUNT = "SLOW_READS"


def read_for_good(replica: Replica, offset: int, max_bytes: int) -> list[Entry]:
    with Path(os.environ[COUNT]).open("ab") as count:
        count.write(b".")
    threading.Event().wait()
    raise AssertionError((replica, offset, max_bytes))


if __name__ == "__main__":
    from broker.__main__ import main  # blocks pandas, which the tests that import this file may need

    setattr(Replica, "stored_batches", read_for_good)  # noqa: B010 - mypy has no words for it
    sys.exit(main())
