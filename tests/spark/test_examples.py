"""The examples as people run them, in the session that all tests share."""

import json
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession

from examples import spark_invoices, spark_join, spark_word_count
from myqueue import Producer
from tests.cluster import Cluster

pytestmark = [pytest.mark.usefixtures("session"), pytest.mark.timeout(300)]  # the first one waits for stack and Spark


@pytest.mark.slow
def test_words_are_counted_over_restarts(
    stack: Cluster, topic_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--url", stack.url, "--topic", topic_name, "--lines", "31", "--checkpoint", str(tmp_path)]
    for run in (1, 2):
        assert spark_word_count.main(arguments) == 0
        sent = Counter(word for number in range(31) for word in spark_word_count.LINES[number % 3].split())
        said = capsys.readouterr().out
        shown = [f"{run * count:8} {word}" for word, count in sorted(sent.items(), key=lambda one: (-one[1], one[0]))]
        assert "\n".join([f"micro-batch {run - 1}:", *shown[: spark_word_count.SHOWN]]) in said


def test_a_topic_is_joined_with_a_table(
    stack: Cluster, session: SparkSession, topic_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def revenue() -> dict[str, Row]:
        return {
            row.category: row for row in spark_join.revenue(session, stack.url, topic_name, str(tmp_path)).collect()
        }

    arguments = ["--url", stack.url, "--topic", topic_name, "--orders", "100", "--table", str(tmp_path)]
    assert spark_join.main(arguments) == 0
    assert "drinks" in capsys.readouterr().out
    before = revenue()
    with Producer(stack.url, topic=topic_name) as producer:
        orders = [{"product": "cake", "quantity": 1000}, {"product": "unknown", "quantity": 1}]
        producer.send_many([*map(json.dumps, orders), "not an order"]).result()
    after = revenue()
    assert sum(row.orders for row in before.values()) == 100
    assert sum(row.orders for row in after.values()) == 101
    assert after["food"].cents - before["food"].cents == 420 * 1000


@pytest.mark.slow
def test_invoices_are_sorted_into_two_topics(stack: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert spark_invoices.main(["--url", stack.url, "--invoices", "41"]) == 0
    said = capsys.readouterr().out
    assert "20 invoices sent, 20 judged\n21 invoices sent, 21 judged\n" in said
    assert "It adds up" in said
