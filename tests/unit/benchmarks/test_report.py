"""Goals, tables, picture and published page of a benchmark run, from made-up figures."""

import json
import socket
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.goals import GOALS, judge
from benchmarks.load import content_length, exchange, request
from benchmarks.measurement import FULL, Detail, Figure, Result, SystemNote, median_of
from benchmarks.plot import svg
from benchmarks.report import Report, report_from_json
from benchmarks.session import SYSTEMS, NotEnoughRoom, check_room, chosen, planned
from benchmarks.table import BEGIN, END, GROUPS, cpu_rows, figure_text, markdown, publish, replace_between


def rate(system: str, group: str, method: str, value: float) -> Result:
    return Result(system, group, method, 100, Figure(value, "messages/s", 30.0, int(value * 30)))


def a_report(*extra: Result) -> Report:
    latency = Figure(2.0, "ms", 30.0, 1500, {"p50_ms": 2.0, "p99_ms": 5.0, "fdatasync_p50_ms": 0.5})
    results = [
        rate("myqueue", "produce", "send_many", 600_000),
        rate("redis", "produce", "XADD, pipelined", 50_000),
        rate("nats", "produce", "publish_async", 20_000),
        Result("myqueue", "latency", "send, then result", 100, latency),
        Result("nats", "consume", "push consumer", 100, None, "it <broke> & ended"),
        *extra,
    ]
    systems = [
        SystemNote("myqueue", "myqueue", "3 replicas & fsync", "1.0"),
        SystemNote("rabbitmq", "RabbitMQ", "1 replica", None, "the Debian package"),
    ]
    machine = {
        "cpu": "a CPU", "cores": 2, "memory_gib": 24.0, "filesystem": "ext4", "fdatasync_p50_ms": 0.5, "python": "3.11",
    }  # fmt: skip
    return Report("2026-01-02T03:04:05+00:00", False, 30.0, machine, systems, results)


def verdicts(report: Report) -> dict[str, tuple[float | None, str]]:
    return {outcome.goal.text: (outcome.value, outcome.verdict) for outcome in report.outcomes}


def test_ratios_are_taken_against_the_best_of_the_peers() -> None:
    assert verdicts(a_report())["send_many / best of Redis and NATS"] == (12.0, "reached")
    better = a_report(rate("redis", "produce", "XADD, pipelined", 100_000))
    assert verdicts(better)["send_many / best of Redis and NATS"] == (6.0, "falls short")


def test_a_latency_goal_is_an_upper_limit_over_the_disk_of_the_same_measurement() -> None:
    found = verdicts(a_report())
    assert found["produce p50 at a low rate / one fdatasync"] == (4.0, "reached")
    assert found["produce p99 at a low rate / its p50"] == (2.5, "reached")


def test_a_latency_is_compared_with_kafkas_of_the_same_run() -> None:
    peer = Figure(1.0, "ms", 30.0, 1500, {"p50_ms": 1.0, "p99_ms": 5.0})
    found = verdicts(a_report(Result("kafka", "latency", "produce(), then its report", 100, peer)))
    assert found["produce p50 at a low rate / Kafka's"] == (2.0, "falls short")


def test_the_cpu_time_of_single_messages_has_a_goal() -> None:
    figure = Figure(1000.0, "messages/s", 30.0, 30_000, {"cpu_us": 600.0})
    found = verdicts(a_report(Result("myqueue", "single HTTP produce", "POST /producer/produce", 100, figure)))
    assert found["CPU time of one produced message then, all processes"] == (600.0, "falls short")


def test_what_was_not_measured_or_failed_reaches_no_goal() -> None:
    found = verdicts(a_report(rate("myqueue", "consume", "for message in consumer", 1e6)))
    assert found["consume, every message an object / best of Redis and NATS"] == (None, "not measured")
    assert found["memory of a broker then"] == (None, "not measured")


def test_every_figure_that_a_goal_speaks_of_is_measured_by_somebody() -> None:
    measured = {one.key for system in SYSTEMS for one in system.measurements()}
    # Measurements of a client that is not installed are left out of the systems' lists.
    wanted = {key for goal in GOALS for key in (goal.figure, *goal.against)} - {"redis.XREAD, hiredis parser.100"}
    assert wanted <= measured
    assert {one.group for system in SYSTEMS for one in system.measurements()} == set(GROUPS)


def test_measurements_have_keys_of_their_own_and_can_be_chosen_by_them() -> None:
    keys = [one.key for system in SYSTEMS for one in system.measurements()]
    assert len(keys) == len(set(keys))
    found = [one.key for system in SYSTEMS for one in chosen(system, ["myqueue.send_many.100", "nats.push"])]
    assert found == ["myqueue.send_many.100", "nats.push consumer.100", "nats.push consumer.1024"]


def test_a_group_of_one_system_can_be_chosen() -> None:
    found = {one.key for system in SYSTEMS for one in chosen(system, ["latency.myqueue", "latency.kafka"])}
    assert found == {"myqueue.send, then result.100", "kafka.produce(), then its report.100"}


def test_further_rounds_repeat_what_is_compared_with_kafka_in_turn() -> None:
    plan = planned(SYSTEMS, [], 3)
    first, later = plan[: len(SYSTEMS)], plan[len(SYSTEMS) :]
    assert [len(ones) for _, ones in first] == [len(system.measurements()) for system in SYSTEMS]
    assert [system.key for system, _ in later] == ["myqueue", "kafka"] * 2
    repeated = {one.key for _, ones in later for one in ones}
    compared = [goal for goal in GOALS if goal.limit and any(key.startswith("kafka") for key in goal.against)]
    assert {key for goal in compared for key in (goal.figure, *goal.against)} <= repeated


def test_the_median_of_the_rounds_counts_and_its_spread_is_shown() -> None:
    def latency(p50: float, p99: float) -> Result:
        figure = Figure(p50, "ms", 30.0, 1500, {"p50_ms": p50, "p99_ms": p99})
        return Result("myqueue", "latency", "send, then result", 100, figure)

    figure = median_of([latency(2.0, 9.0), latency(3.0, 4.0), latency(1.0, 5.0)]).figure
    assert figure is not None
    assert figure_text(figure) == "p50 2.00 ms (1.00–3.00), p99 5.00 ms"
    rates = [rate("myqueue", "produce", "send_many", value) for value in (3e5, 1e5, 2e5)]
    middle = median_of(rates).figure
    assert middle is not None
    assert figure_text(middle) == "200,000 /s (100,000–300,000)"
    assert median_of(rates[:1]) == rates[0]


def test_a_failed_round_is_not_hidden_by_the_others() -> None:
    broken = Result("myqueue", "produce", "send_many", 100, None, "it broke")
    assert median_of([rate("myqueue", "produce", "send_many", 1e5), broken]) == broken


def test_a_report_survives_json() -> None:
    report = a_report()
    again = report_from_json(json.loads(json.dumps(report.as_json())))
    assert again == report
    assert [result.key for result in again.failed] == ["nats.push consumer.100"]


def test_json_of_something_else_is_refused() -> None:
    with pytest.raises(ValueError, match="not a benchmark report"):
        report_from_json({"results": []})


def test_the_picture_is_well_formed_and_shows_every_figure() -> None:
    root = ElementTree.fromstring(svg(a_report()))
    texts = [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"600 k", "50.0 k", "20.0 k"} <= set(texts)
    bars = list(root.iter("{http://www.w3.org/2000/svg}rect"))
    widths = {element.get("class"): float(element.get("width") or 0) for element in bars}
    assert len(bars) == 3
    assert widths["ours"] > widths["peer"]


def test_cpu_time_is_told_for_each_message_and_kind_of_process() -> None:
    details: dict[str, Detail] = {"rounds": 3, "cpu_s.client": 1.0, "cpu_s.broker-1": 2.0, "cpu_s.broker-2": 4.0}
    figure = Figure(1e5, "messages/s", 10.0, 1_000_000, details)
    report = a_report(Result("myqueue", "consume", "fetch_arrow", 1024, figure))
    assert ("fetch_arrow", "1 KiB", "1.00", "0.00", "6.00", "0.00", "0.00", "7.00") in cpu_rows(report)


def test_the_page_keeps_everything_outside_the_markers(tmp_path: Path) -> None:
    page, picture = tmp_path / "page.md", tmp_path / "picture.svg"
    page.write_text(f"# Before\n\n{BEGIN}\nold\n{END}\n\nafter\n")
    publish(a_report(), page, picture)
    publish(a_report(), page, picture)
    text = page.read_text()
    assert text.startswith(f"# Before\n\n{BEGIN}\n")
    assert text.endswith(f"\n{END}\n\nafter\n")
    assert "old" not in text
    assert text.count("send_many / best of Redis and NATS") == 1
    assert "missing: the Debian package" in text
    assert "failed: it <broke> & ended" in markdown(a_report())
    ElementTree.parse(picture)


def test_a_page_without_markers_is_left_alone() -> None:
    with pytest.raises(ValueError, match="no markers"):
        replace_between("# Nothing here", "new")


def test_requests_say_their_length_and_answers_are_understood() -> None:
    raw = request("POST", "host:80", "/path", b'{"a":1}', "X-One: 1")
    head, _, body = raw.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /path HTTP/1.1\r\nHost: host:80\r\n")
    assert content_length(head) == len(body) == 7
    assert content_length(b"HTTP/1.1 200 OK\r\nServer: x") is None


def test_an_exchange_reads_the_whole_response_and_refuses_another() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n{"topics":[]')
        theirs.shutdown(socket.SHUT_WR)
        exchange(ours, request("GET", "host", "/topics"), b'"topics"')
        assert theirs.recv(100) == b"GET /topics HTTP/1.1\r\nHost: host\r\n\r\n"
        with pytest.raises(RuntimeError, match="answer"):
            exchange(ours, b"GET", b'"topics"')


def test_a_disk_that_is_too_small_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(NotEnoughRoom, match="choose another with --folder"):
        check_room(tmp_path, replace(FULL, seconds=1e9))


def test_no_results_reach_nothing() -> None:
    assert {outcome.verdict for outcome in judge([])} == {"not measured"}
