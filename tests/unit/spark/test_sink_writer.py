"""What the driver makes of the tasks' messages before it asks the cluster anything."""

import pytest

from myqueue.protocol.errors import MyQueueError
from myqueue.spark.options import MAX_INLINE_BYTES, stream_write_options
from myqueue.spark.sink import MyQueueStreamWriter, StagedByTask, inline_limit


def test_a_task_that_says_nothing_is_not_left_out() -> None:
    writer = MyQueueStreamWriter(stream_write_options({"url": "http://nowhere.invalid", "topic": "t"}))
    with pytest.raises(MyQueueError, match="micro-batch 3: 1 of 2 tasks did not say what they have staged"):
        writer.commit([StagedByTask("q", 0, []), None], 3)


def test_what_tasks_hand_to_the_driver_fits_into_its_memory() -> None:
    """However many there are: each knows only its own number."""
    options = stream_write_options({"url": "http://nowhere.invalid", "topic": "t"})
    shares = [inline_limit(options, task) for task in range(100_000)]
    assert set(shares[:100]) == {MAX_INLINE_BYTES}
    assert sum(shares) < 80 << 20
