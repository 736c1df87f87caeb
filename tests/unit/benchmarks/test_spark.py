"""The Spark part of the benchmarks, as far as it needs no Spark."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks import spark
from benchmarks.goals import SPARK_METRICS, SPARK_READ, judge
from benchmarks.measurement import Detail, Figure, Result
from benchmarks.spark import peak_memory
from benchmarks.table import figure_text
from spark.config import SparkFailure

ROOT = Path(__file__).resolve().parents[3]


def a_read(**details: Detail) -> Result:
    system, method, _ = SPARK_READ.split(".")
    figure = Figure(1e6, "messages/s", 60.0, 5_000_000, {"topic_s": 5.0, "pruned_s": 4.0, "parquet_s": 2.0, **details})
    return Result(system, "Spark", method, 100, figure)


def a_metrics_run() -> Result:
    system, method, _ = SPARK_METRICS.split(".")
    figure = Figure(1.25, "times", 60.0, 4_000_000, {"short_history": 400_000, "long_history": 4_000_000})
    return Result(system, "Spark", method, 100, figure)


def test_spark_is_judged_by_ratios_of_one_run() -> None:
    results = [a_read(driver_heap_bytes=float(512 << 20), driver_rss_bytes=8e9), a_metrics_run()]
    found = {
        outcome.goal.text: (outcome.value, outcome.verdict)
        for outcome in judge(results)
        if outcome.goal.text.startswith("Spark") and outcome.verdict != "not measured"
    }
    assert list(found.values()) == [
        (2.5, "reached"),
        (2.0, "no goal"),
        (1.25, "reached"),
        (512.0, "reached"),
        (8.0, "no goal"),
    ]


def test_a_ratio_of_times_tells_what_was_stored() -> None:
    figure = a_metrics_run().figure
    assert figure is not None
    assert figure_text(figure) == "1.25 times as long (400,000 → 4,000,000 stored)"


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_java(_choice: str) -> object:
        raise SparkFailure("no Java here")

    monkeypatch.setattr(spark, "find_java", no_java)
    assert spark.OursSpark().missing() == "no Java here"
    monkeypatch.setattr(spark, "find_spec", lambda _name: None)
    assert "requirements/spark.txt" in str(spark.OursSpark().missing())


def test_the_other_measurements_do_without_spark() -> None:
    code = "import sys, benchmarks.session; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_the_most_memory_of_a_python_process_below_is_found() -> None:
    code = "held = b'x' * (50 << 20); del held; print('made', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert psutil.Process(child.pid).memory_info().rss < 50 << 20
        found = peak_memory()
        child.communicate(b"\n")
    assert 50 << 20 < found.worker < 200 << 20
    assert found.driver == 0
