"""Batches of one producer that reach the leader in another order than they were sent, or not at all."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random

import requests

from myqueue.protocol import batch as batches
from myqueue.protocol import errors, http_headers
from myqueue.protocol.batch import Message
from tests.integration.broker_process import BrokerProcess
from tests.integration.broker_trio import Trio

IN_FLIGHT = 8
BATCHES = 48


def append(broker: BrokerProcess, sequence: int) -> requests.Response:
    header, body, _ = batches.split(batches.encode(broker.topic_id, 0, [Message(value(sequence))]))
    named = replace(header, producer_id=31, producer_epoch=1, sequence=sequence)
    headers = {"Content-Type": http_headers.BATCH_TYPE, **broker.grant()}
    return requests.post(broker.data_path(), data=named.pack() + bytes(body), headers=headers, timeout=10)


def value(sequence: int) -> bytes:
    return b"batch %d" % sequence


def refusals(sent: Sequence[int], missing: Sequence[int]) -> set[tuple[int, bool]]:
    """Codes, and whether they are retriable. Before the first batch is written the leader does not know the producer;
    while that one is on its way, another batch may be refused before or after it."""
    classes: tuple[type[errors.MyQueueError], ...] = (errors.SequenceGap,)
    if 0 in missing:
        classes = (errors.UnknownProducer, *classes) if 0 in sent else (errors.UnknownProducer,)
    return {(each.error_code, each.retriable) for each in classes}


def test_shuffled_and_dropped_batches_are_stored_once_and_in_order(tmp_path: Path) -> None:
    """What is refused was not written: it is sent again, in order, with what was lost."""
    random = Random(5)
    trio = Trio(tmp_path).start()
    try:
        trio.create()
        broker = trio.brokers[trio.leader()]
        refused = 0
        with ThreadPoolExecutor(IN_FLIGHT) as pool:
            for first in range(0, BATCHES, IN_FLIGHT):
                missing = list(range(first, first + IN_FLIGHT))
                lost = random.randrange(first, first + IN_FLIGHT)
                sent = [sequence for sequence in missing if sequence != lost]
                random.shuffle(sent)
                while sent:
                    expected = refusals(sent, missing)
                    for sequence, answer in zip(sent, pool.map(lambda n: append(broker, n), sent), strict=True):
                        if answer.status_code == 200:
                            assert answer.json()["base_offset"] == sequence
                            missing.remove(sequence)
                            continue
                        refused += 1
                        problem = answer.json()
                        assert problem["outcome"] == "not_written"
                        assert (problem["error_code"], problem["retriable"]) in expected
                    sent = list(missing)
        assert refused
        assert trio.await_same() == [value(sequence) for sequence in range(BATCHES)]
    finally:
        trio.close()
