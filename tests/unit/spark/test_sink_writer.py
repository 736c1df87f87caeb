"""What the driver makes of the tasks' messages before it asks the cluster anything."""

import pytest

from myqueue.protocol.errors import MyQueueError
from myqueue.spark.sink import MyQueueStreamWriter, StagedByTask
from myqueue.spark.sink_options import stream_options


def test_a_task_that_says_nothing_is_not_left_out() -> None:
    writer = MyQueueStreamWriter(stream_options({"url": "http://nowhere.invalid", "topic": "t"}))
    with pytest.raises(MyQueueError, match="micro-batch 3: 1 of 2 tasks did not say what they have staged"):
        writer.commit([StagedByTask("q", 0, []), None], 3)
