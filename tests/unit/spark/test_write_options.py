"""The options of a write: all known, all checked, each error names its option."""

import pytest

from myqueue.protocol.errors import InvalidRequest
from myqueue.spark.options import batch_write_options, stream_write_options


def test_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MYQUEUE_URL", "queue:8080")
    options = stream_write_options({"topic": "orders", "checkpointlocation": "/tmp/c", "queryname": "q", "path": "p"})
    assert (options.url, options.topic, options.codec) == ("http://queue:8080", "orders", 0)
    assert options.staging_topic == "_staged.orders"
    assert (options.staging_retention_ms, options.staging_retention_given) == (86_400_000, False)
    monkeypatch.delenv("MYQUEUE_URL")
    assert batch_write_options({}).url == "http://localhost"


def test_all_of_them_in_any_case() -> None:
    options = stream_write_options(
        {"URL": "http://q", "Topic": "t", "COMPRESSION": "Zstd", "batchbytes": "5", "stagingRetentionMs": "60000"}
    )
    assert (options.url, options.topic, options.codec, options.batch_bytes) == ("http://q", "t", 2, 5)
    assert (options.staging_retention_ms, options.staging_retention_given) == (60_000, True)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"subscribe": "t"}, "option subscribe is not known; a write takes url, topic, createTopics"),
        ({"url": "ftp://x"}, "option url: "),
        ({"kafka.bootstrap.servers": "x", "topic": "t"}, "option kafka.bootstrap.servers is Kafka's; write option url"),
        ({"kafka.compression.type": "lz4"}, "option kafka.compression.type is Kafka's; write option compression"),
        ({"partitions": "0"}, "option partitions: takes a whole number from 1 to 256, not '0'"),
        ({"createTopics": "no"}, "option createTopics: takes true or false, not 'no'"),
        ({"topic": "a/b"}, "option topic: topic name must be"),
        ({"topic": "_staged.t"}, "option topic: topics starting with '_staged.'"),
        ({"topic": "t" * 193}, "option topic: .* is too long for a stream"),
        ({"compression": "gzip"}, "option compression: takes one of none, lz4, zstd, not 'gzip'"),
        ({"batchBytes": "0"}, "option batchBytes: takes a whole number from 1 to 4128768, not '0'"),
        ({"batchBytes": "1k"}, "option batchBytes"),
        ({"batchBytes": "4128769"}, "option batchBytes"),
        ({"topic": ""}, "option topic: topic name must be"),
        ({"stagingRetentionMs": "59999"}, "option stagingRetentionMs: takes a whole number from 60000 on"),
        ({"stagingRetentionMs": "9" * 30}, "option stagingRetentionMs"),
    ],
)
def test_wrong_ones_are_named(given: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        stream_write_options(given)


def test_a_batch_write_stages_nothing() -> None:
    with pytest.raises(InvalidRequest, match="option stagingRetentionMs means nothing in a batch write"):
        batch_write_options({"stagingretentionms": "5"})
    assert batch_write_options({"topic": "t" * 200}).topic == "t" * 200
