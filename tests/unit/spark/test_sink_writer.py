"""What the driver makes of the tasks' messages before it asks the cluster anything."""

import pytest

from myqueue.protocol.errors import MyQueueError
from myqueue.spark.options import stream_write_options
from myqueue.spark.sink import MyQueueStreamWriter, StagedByTask


def test_a_task_that_says_nothing_is_not_left_out() -> None:
    writer = MyQueueStreamWriter(stream_write_options({"url": "http://nowhere.invalid", "topic": "t"}))
    with pytest.raises(MyQueueError, match="micro-batch 3: 1 of 2 tasks did not say what they have staged"):
        writer.commit([StagedByTask("q", 0, []), None], 3)
