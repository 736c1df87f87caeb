"""Options of a read: defaults, forms, and errors that name the option."""

import pytest

from myqueue.protocol.errors import InvalidRequest
from myqueue.spark.offsets import (
    EARLIEST,
    LATEST,
    AtTimestamp,
    EarliestOrLatest,
    PartitionTimestamps,
    SpecificOffsets,
)
from myqueue.spark.options import ReadOptions, batch_read_options, stream_read_options

TOPIC = {"subscribe": "orders"}


def test_the_defaults_of_a_batch_read_and_of_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MYQUEUE_URL", raising=False)
    batch, stream = batch_read_options(TOPIC), stream_read_options(TOPIC)
    assert (batch.url, batch.starting, batch.ending) == (
        "http://localhost",
        EarliestOrLatest(EARLIEST),
        EarliestOrLatest(LATEST),
    )
    assert stream.starting == EarliestOrLatest(LATEST)
    assert (batch.fail_on_data_loss, batch.include_headers, batch.min_partitions) == (True, False, None)
    monkeypatch.setenv("MYQUEUE_URL", "queue:8080")
    assert batch_read_options(TOPIC).url == "http://queue:8080"
    assert batch_read_options({**TOPIC, "url": "https://other/"}).url == "https://other"
    monkeypatch.setenv("MYQUEUE_URL", "ftp://queue")
    assert batch_read_options({**TOPIC, "url": "https://other/"}).url == "https://other"
    with pytest.raises(InvalidRequest, match="option url is not given, and MYQUEUE_URL: 'ftp://queue'"):
        batch_read_options(TOPIC)


def test_names_are_taken_in_any_case() -> None:
    options = stream_read_options({"SUBSCRIBE": "a, b,a", "maxoffsetspertrigger": "5", "failondataloss": "FALSE"})
    assert options.subscription.topics == ("a", "b")
    assert (options.max_offsets, options.fail_on_data_loss) == (5, False)


def test_subscriptions() -> None:
    assigned = batch_read_options({"assign": '{"a":[2,0,2]}'}).subscription
    assert (assigned.topics, assigned.partitions) == (("a",), {"a": (0, 2)})
    pattern = batch_read_options({"subscribePattern": "or.*|[._]?staged.*"}).subscription
    assert [name for name in ("orders", "xorders", "staged", "_staged.orders") if pattern.includes(name)] == [
        "orders",
        "staged",
    ]


def test_positions() -> None:
    def starting(text: str) -> object:
        return batch_read_options({**TOPIC, "startingOffsets": text}).starting

    assert starting(" Earliest") == EarliestOrLatest(EARLIEST)
    assert starting('{"orders":{"0":23,"1":-2,"2":-1}}') == SpecificOffsets({"orders": {0: 23, 1: EARLIEST, 2: LATEST}})
    timed = batch_read_options({**TOPIC, "startingTimestamp": "5", "endingTimestamp": "9"})
    assert (timed.starting, timed.ending) == (AtTimestamp(5), AtTimestamp(9))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"subscribe": "a", "colour": "red"}, "option colour is not known; a read takes url, subscribe, "),
        ({}, "options subscribe, assign, subscribePattern: give one of them, not 0"),
        ({"subscribe": "a", "assign": '{"a":[0]}'}, "give one of them, not 2"),
        ({"subscribe": "a,,b"}, "option subscribe: '': topic name must be"),
        ({"subscribePattern": "("}, "option subscribePattern: '(' is not a regular expression"),
        ({"assign": "a"}, "option assign: takes JSON as {\"orders\":[0,1]}, not 'a'"),
        ({"assign": '{"a":[true]}'}, "option assign: a: takes JSON"),
        ({"assign": "{}"}, "option assign: takes JSON"),
        ({**TOPIC, "url": "ftp://x"}, "option url: 'ftp://x': the address must start with http"),
        ({**TOPIC, "startingOffsets": "newest"}, "option startingOffsets: takes earliest, latest or JSON"),
        ({**TOPIC, "startingOffsets": '{"orders":{"0":-3}}'}, "option startingOffsets: orders/0: takes"),
        ({**TOPIC, "startingOffsets": '{"orders":5}'}, "option startingOffsets: orders: takes"),
        ({**TOPIC, "startingTimestamp": "-1"}, "option startingTimestamp: takes a whole number from 0 on, not '-1'"),
        ({**TOPIC, "startingTimestamp": "5", "startingOffsets": "earliest"}, "give one of them"),
        ({**TOPIC, "startingTimestamp": "5", "endingTimestamp": "4"}, "startingTimestamp is later than"),
        ({**TOPIC, "minPartitions": "0"}, "option minPartitions: takes a whole number from 1 on, not '0'"),
        ({**TOPIC, "minPartitions": "9" * 5000}, "option minPartitions: takes a whole number from 1 on, not '999"),
        ({**TOPIC, "fetchBytes": "9000000"}, "option fetchBytes: takes a whole number from 1 to 8388608"),
        ({**TOPIC, "failOnDataLoss": "no"}, "option failOnDataLoss: takes true or false, not 'no'"),
        ({**TOPIC, "consumer": "me"}, "option consumer means nothing in a batch read"),
        ({**TOPIC, "maxOffsetsPerTrigger": "5"}, "option maxOffsetsPerTrigger means nothing in a batch read"),
        ({**TOPIC, "startingOffsets": "latest"}, "option startingOffsets: a batch read cannot start at latest"),
        ({**TOPIC, "endingOffsets": "earliest"}, "option endingOffsets: a batch read cannot end at earliest"),
    ],
)
def test_a_wrong_option_is_named(given: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        batch_read_options(given)
    assert says in refused.value.message


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"endingOffsets": "latest"}, "option endingOffsets means nothing in a stream"),
        ({"endingTimestamp": "5"}, "option endingTimestamp means nothing in a stream"),
        ({"endingOffsetsByTimestamp": "{}"}, "option endingOffsetsByTimestamp means nothing in a stream"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"}, "minOffsetsPerTrigger is more than max"),
        ({"maxTriggerDelay": "soon"}, "option maxTriggerDelay: takes a time as 500ms, 30s, 15m or 1h, not 'soon'"),
        ({"failOnNoLeader": "false"}, "option failOnNoLeader: false takes startingOffsets earliest"),
        ({"startingOffsetsByTimestamp": '{"orders":{"0":-1}}'}, "startingOffsetsByTimestamp: orders/0: takes JSON"),
        ({"startingOffsetsByTimestamp": "{}", "startingOffsets": "earliest"}, "startingOffsetsByTimestamp: give one"),
        ({"startingOffsets": '{"orders":{"id":5}}'}, "option startingOffsets: orders/id: takes"),
        ({"consumer": ""}, "option consumer: takes a name of 1 to 200 printable characters"),
        ({"maxOffsetsPerTrigger": "1e3"}, "option maxOffsetsPerTrigger: takes a whole number from 1 on, not '1e3'"),
    ],
)
def test_a_wrong_option_of_a_stream_is_named(given: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        stream_read_options({**TOPIC, **given})
    assert says in refused.value.message


def test_when_a_micro_batch_is_triggered() -> None:
    def delay_s(text: str) -> float:
        return stream_read_options({**TOPIC, "minOffsetsPerTrigger": "5", "maxTriggerDelay": text}).max_trigger_delay_s

    assert stream_read_options(TOPIC).max_trigger_delay_s == 15 * 60
    assert [delay_s(text) for text in ("250", "500ms", "30s", "2 min", "1H")] == [0.25, 0.5, 30, 120, 3600]


@pytest.mark.parametrize(
    ("option", "advice"),
    [
        ("kafka.bootstrap.servers", "is Kafka's; write option url, the address of the cluster"),
        ("Kafka.Group.Id", "is Kafka's; write option consumer"),
        ("kafka.sasl.jaas.config", "is Kafka's; write option url with https"),
        ("kafka.max.poll.records", "is Kafka's; leave it out"),
        ("kafkaConsumer.pollTimeoutMs", "is Kafka's; write option timeoutMs"),
        ("startingOffsetsByTimestampStrategy", "is Kafka's; leave it out"),
    ],
)
def test_an_option_of_kafka_says_what_to_write_instead(option: str, advice: str) -> None:
    for check in (batch_read_options, stream_read_options):
        with pytest.raises(InvalidRequest) as refused:
            check({**TOPIC, "kafka.zzz": "1", option: "x"} if "bootstrap" in option else {**TOPIC, option: "x"})
        assert f"option {option} {advice}" in refused.value.message


def test_a_time_of_each_partition() -> None:
    given = {
        **TOPIC,
        "startingOffsetsByTimestamp": '{"orders":{"0":7}}',
        "endingOffsetsByTimestamp": '{"orders":{"0":9}}',
    }
    options = batch_read_options(given)
    assert options.starting == PartitionTimestamps({"orders": {0: 7}})
    assert options.ending == PartitionTimestamps({"orders": {0: 9}})


def test_a_stream_may_have_a_consumer() -> None:
    options: ReadOptions = stream_read_options({**TOPIC, "consumer": "billing"})
    assert options.consumer == "billing"
