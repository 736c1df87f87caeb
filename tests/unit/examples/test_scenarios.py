"""The scenarios' pure parts: log files, mappings, lanes, and a checker that finds every kind of mistake."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.scenarios.checking import Consumed, ConsumerCheck, judge
from examples.scenarios.cluster import ClusterChoice, NoCluster, choose_cluster
from examples.scenarios.consumer import Limits
from examples.scenarios.consumer import main as run_consumer
from examples.scenarios.generator import log_text
from examples.scenarios.log_file import (
    IncompatibleLog,
    Line,
    consumed_line,
    consumer_file,
    parse_line,
    producer_file,
    read_consumed,
    read_log,
)
from examples.scenarios.mapping import BadScenario, load_scenario, parse_mapping
from examples.scenarios.play import LineCount
from examples.scenarios.producer import due_times, lanes_of
from examples.scenarios.producer import main as run_producer
from examples.scenarios.runner import main as run_scenario

ROOT = Path(__file__).resolve().parents[3]
GOOD = b"21:52:23\tINFO\tP1-1\tT1"


class TestLogFiles:
    def test_a_line(self) -> None:
        assert parse_line(GOOD) == Line(21 * 3600 + 52 * 60 + 23, "INFO", "P1-1", "T1")

    def test_columns_may_be_lined_up_with_more_tabs(self) -> None:
        assert parse_line(b"21:52:23\tINFO\t\tP1-1\t\tT1\r") == parse_line(GOOD)

    @pytest.mark.parametrize(
        ("line", "problem"),
        [
            (b"", "0 fields, not 4"),
            (b"21:52:23 INFO P1-1 T1", "1 field, not 4"),
            (b"21:52:23\tINFO\tT1", "3 fields, not 4"),
            (GOOD + b"\tmore", "5 fields, not 4"),
            (GOOD + b"\t", "a tab too many"),
            (b"24:00:00\tINFO\tP1-1\tT1", "HH:MM:SS, not '24:00:00'"),
            (b"1:02:03\tINFO\tP1-1\tT1", "HH:MM:SS"),
            (b"ts\tmsg\tparallel\ttopic", "HH:MM:SS"),
            (b"21:52:23\tINFO\tP1-1\tT 1", "topic name must be"),
            (b"21:52:23\t\xff\tP1-1\tT1", "not UTF-8"),
            (b"21:52:23\t" + b"x" * (1 << 20) + b"y\tP1-1\tT1", "msg has 1048577 bytes"),
        ],
    )
    def test_a_line_of_another_shape(self, tmp_path: Path, line: bytes, problem: str) -> None:
        path = tmp_path / "producer_1.txt"
        path.write_bytes(GOOD + b"\n" + line + b"\n" + GOOD + b"\n")
        with pytest.raises(IncompatibleLog) as raised:
            read_log(path)
        assert str(raised.value).startswith(f"log file: incompatible: {path}, line 2: ")
        assert problem in str(raised.value)

    def test_an_empty_file_has_no_lines(self, tmp_path: Path) -> None:
        path = tmp_path / "producer_1.txt"
        path.write_bytes(b"")
        assert read_log(path) == []

    @given(st.lists(st.text(st.characters(exclude_characters="\t\n\r", codec="utf-8"), min_size=1), min_size=1))
    def test_what_was_in_a_log_comes_out_as_it_was(self, messages: list[str]) -> None:
        lines = "".join(consumed_line("T1", message.encode()) for message in messages)
        assert lines == "".join(f"T1\t{message}\n" for message in messages)

    def test_foreign_messages_do_not_break_lines(self, tmp_path: Path) -> None:
        path = tmp_path / "consumer_1.txt"
        path.write_text(consumed_line("T1", b"a\tb\r\nc\xff"), newline="\n")
        assert read_consumed(path) == [("T1", "a\\tb\\r\\nc\\xff")]


class TestMapping:
    def test_the_scenarios_that_come_along(self) -> None:
        two, five = load_scenario("2P2C"), load_scenario("5P3C")
        assert two.producers == {1: ("T1", "T2"), 2: ("T1", "T2")}
        assert two.consumers == {1: ("T1", "T2"), 2: ("T1", "T2")}
        assert five.producers == {1: ("T1", "T2", "T3"), 2: ("T1", "T3"), 3: ("T1",), 4: ("T2",), 5: ("T2",)}
        assert five.consumers == {1: ("T1", "T2", "T3"), 2: ("T1", "T3"), 3: ("T1", "T3")}

    @pytest.mark.parametrize("name", ["2P2C", "5P3C"])
    def test_their_logs_are_what_the_generator_makes(self, name: str) -> None:
        scenario = load_scenario(name)
        messages = []
        for number, topics in scenario.producers.items():
            path = producer_file(scenario.folder, number)
            assert path.read_text() == log_text(number, topics, seed=1)
            messages += [line.message for line in read_log(path)]
        assert len(set(messages)) == len(messages)

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("", "at least one producer"),
            ("T1: P1", "line 1: not `topic: producers: consumers`"),
            ("T1: P1: C1\n\nT1: P2: C2", "line 3: topic T1 is there twice"),
            ("T1: P1 P1: C1", "P1 is there twice"),
            ("T1: C1: P1", "'C1' must be P and a number"),
            ("T/1: P1: C1", "topic name must be"),
        ],
    )
    def test_a_bad_mapping_names_the_line(self, text: str, problem: str) -> None:
        with pytest.raises(ValueError, match=r"line|at least") as raised:
            parse_mapping(text)
        assert problem in str(raised.value)

    def test_an_unknown_scenario_tells_which_there_are(self) -> None:
        with pytest.raises(BadScenario, match="there are 2P2C, 5P3C"):
            load_scenario("3P1C")


class TestLanes:
    def test_over_midnight(self) -> None:
        assert due_times([86_399, 86_399, 1, 0, 5]) == [0, 0, 2, 1, 6]

    @given(st.integers(0, 86_399), st.lists(st.integers(-600, 40_000)))
    def test_steps_shorter_than_half_a_day_are_kept(self, first: int, steps: list[int]) -> None:
        times = [first]
        for step in steps:
            times.append(times[-1] + step)
        assert due_times(time % 86_400 for time in times) == [time - first for time in times]

    @given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from("abc"))))
    def test_every_line_is_in_its_lane_and_in_order(self, drawn: list[tuple[int, str]]) -> None:
        lines = [Line(second, str(place), lane, "T1") for place, (second, lane) in enumerate(drawn)]
        lanes = lanes_of(lines)
        for lane, steps in lanes.items():
            assert [step.line for step in steps] == [line for line in lines if line.lane == lane]
        assert sum(map(len, lanes.values())) == len(lines)


def sent_and_read(counts: list[int]) -> tuple[dict[int, list[Line]], list[Consumed]]:
    """So many lines of each of a few lanes of two producers, read lane by lane."""
    sent: dict[int, list[Line]] = {1: [], 2: []}
    read = []
    for number, count in enumerate(counts):
        producer = 1 + number % 2
        for turn in range(count):
            line = Line(0, f"lane {number} turn {turn}", f"lane-{number}", f"T{1 + number % 3}")
            sent[producer].append(line)
            read.append((line.topic, line.message))
    return sent, read


def mistakes(verdict: ConsumerCheck) -> list[str]:
    found = [kind for kind in ("missing", "repeated", "unknown", "disordered") if getattr(verdict, kind)]
    assert verdict.is_good == (not found)
    return found


TOPICS = ("T1", "T2", "T3")
COUNTS = st.lists(st.integers(2, 6), min_size=1, max_size=5)


class TestChecking:
    @given(COUNTS, st.randoms(use_true_random=False))
    def test_any_mixture_of_lanes_in_order_is_good(self, counts: list[int], chance: Random) -> None:
        sent, read = sent_and_read(counts)
        lanes: dict[str, list[Consumed]] = {}
        for one in read:
            lanes.setdefault(one[1].split(" turn ")[0], []).append(one)
        mixed = []
        while lanes:
            lane = chance.choice(sorted(lanes))
            mixed.append(lanes[lane].pop(0))
            if not lanes[lane]:
                del lanes[lane]
        verdict = judge(sent, TOPICS, mixed)
        assert verdict.is_good
        assert verdict.expected == verdict.received == sum(counts)

    @given(COUNTS, st.data())
    def test_a_dropped_line_is_found(self, counts: list[int], data: st.DataObject) -> None:
        sent, read = sent_and_read(counts)
        dropped = read.pop(data.draw(st.integers(0, len(read) - 1)))
        verdict = judge(sent, TOPICS, read)
        assert mistakes(verdict) == ["missing"]
        assert verdict.missing == {dropped: 1}

    @given(COUNTS, st.data())
    def test_a_doubled_line_is_found(self, counts: list[int], data: st.DataObject) -> None:
        sent, read = sent_and_read(counts)
        doubled = data.draw(st.sampled_from(read))
        read.insert(data.draw(st.integers(read.index(doubled) + 1, len(read))), doubled)
        verdict = judge(sent, TOPICS, read)
        assert mistakes(verdict) == ["repeated"]
        assert verdict.repeated == {doubled: 1}

    @given(COUNTS, st.data())
    def test_two_swapped_lines_of_a_lane_are_found(self, counts: list[int], data: st.DataObject) -> None:
        sent, read = sent_and_read(counts)
        lane = data.draw(st.integers(0, len(counts) - 1))
        first = sum(counts[:lane]) + data.draw(st.integers(0, counts[lane] - 2))
        read[first], read[first + 1] = read[first + 1], read[first]
        verdict = judge(sent, TOPICS, read)
        assert mistakes(verdict) == ["disordered"]
        assert len(verdict.disordered) == 1
        assert f"lane-{lane}" in verdict.disordered[0]

    def test_a_message_that_nobody_sent_is_found(self) -> None:
        sent, read = sent_and_read([2])
        assert judge(sent, TOPICS, [*read, ("T1", "who?")]).unknown == {("T1", "who?"): 1}

    def test_only_the_topics_of_the_consumer_count(self) -> None:
        sent, read = sent_and_read([2, 2])
        assert judge(sent, ["T2"], [one for one in read if one[0] == "T2"]).is_good
        assert judge(sent, ["T2"], read).unknown.total() == 2

    def test_equal_messages_are_counted_and_their_order_is_not_judged(self) -> None:
        lines = [Line(0, "INFO", lane, "T1") for lane in ("a", "b", "a")]
        verdict = judge({1: lines}, ["T1"], [("T1", "INFO")] * 3)
        assert verdict.is_good
        assert verdict.unjudged == 3
        assert judge({1: lines}, ["T1"], [("T1", "INFO")] * 2).missing == {("T1", "INFO"): 1}
        assert judge({1: lines}, ["T1"], [("T1", "INFO")] * 4).repeated == {("T1", "INFO"): 1}

    def test_equal_messages_of_one_lane_keep_their_order_with_the_others(self) -> None:
        lines = [Line(0, message, "a", "T1") for message in ("x", "y", "x")]
        assert judge({1: lines}, ["T1"], [("T1", "x"), ("T1", "y"), ("T1", "x")]).is_good
        assert judge({1: lines}, ["T1"], [("T1", "x"), ("T1", "x"), ("T1", "y")]).disordered

    def test_the_command_finds_all_three_in_files(self, tmp_path: Path) -> None:
        scenario = load_scenario("2P2C")
        sent = scenario.sent(scenario.folder)
        read = [(line.topic, line.message) for lines in sent.values() for line in lines]
        lane = [place for place, line in enumerate(sent[1]) if (line.topic, line.lane) == ("T1", "P1-1")]
        swapped = list(read)
        swapped[lane[0]], swapped[lane[1]] = read[lane[1]], read[lane[0]]
        for number, consumed in ((1, [read[0], *read]), (2, swapped[:-1])):
            text = "".join(f"{topic}\t{message}\n" for topic, message in consumed)
            consumer_file(tmp_path, number).write_text(text)
        ended = subprocess.run(
            [ROOT / "examples/2P2C", "--check", "--out", tmp_path],
            cwd=tmp_path,
            env=os.environ | {"COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert ended.returncode == 1, ended
        for words in ("C1: 1 read too often", "C2: 1 missing", "C2: 1 out of order", "✗ 2P2C"):
            assert words in ended.stdout


class TestWhichCluster:
    def test_options_win_and_exclude_each_other(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MYQUEUE_URL", "queue.example:81/")
        monkeypatch.setenv("MYQUEUE_STORAGE", "memory")
        assert choose_cluster("http://here", None) == ClusterChoice("http://here", None)
        assert choose_cluster(None, "disk") == ClusterChoice(None, "disk")
        assert choose_cluster(None, None) == ClusterChoice("http://queue.example:81", None)
        monkeypatch.delenv("MYQUEUE_URL")
        assert choose_cluster(None, None) == ClusterChoice(None, "memory")
        monkeypatch.setenv("MYQUEUE_STORAGE", "tape")
        with pytest.raises(NoCluster, match="MYQUEUE_STORAGE must be one of disk, memory, not 'tape'"):
            choose_cluster(None, None)
        with pytest.raises(NoCluster, match="exclude each other"):
            choose_cluster("http://here", "disk")


class TestLimits:
    def test_each_ends_it(self) -> None:
        counted = Limits(0.0, 2, None, None)
        counted.add(1.0)
        assert not counted.are_reached(1e6)
        counted.add(2.0)
        assert counted.are_reached(2.0)
        idle = Limits(0.0, None, 5.0, None)
        idle.add(3.0)
        assert not idle.are_reached(7.9)
        assert idle.are_reached(8.0)
        late = Limits(0.0, None, 5.0, 6.0)
        late.add(5.5)
        assert late.are_reached(6.0)


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A folder where no cluster is named and none runs."""
    for name in ("MYQUEUE_URL", "MYQUEUE_STORAGE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MYQUEUE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield tmp_path
    for number, handler in handlers.items():
        signal.signal(number, handler)


class TestCommands:
    def test_an_incompatible_log_is_told_before_anything_is_asked_for(
        self, by_hand: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        log = by_hand / "producer_1.txt"
        log.write_bytes(GOOD + b"\n21:52:23 INFO P1-1 T1\n")
        (by_hand / "mapping.txt").write_text("T1: P1: C1\n")
        nobody = ["--broker", "127.0.0.1:1"]
        assert run_producer(["--id", "1", "--topics", "T1", "--log-dir", str(by_hand), *nobody]) == 2
        assert f"P1: log file: incompatible: {log}, line 2: 1 field, not 4" in capsys.readouterr().err
        assert run_scenario([str(by_hand), *nobody]) == 2
        assert f"log file: incompatible: {log}, line 2" in capsys.readouterr().err

    def test_a_missing_log_is_told(self, by_hand: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run_producer(["--id", "4", "--topics", "T1", "--log_loc", str(by_hand)]) == 2
        assert "producer_4.txt: No such file or directory; --log-dir says where it is" in capsys.readouterr().err

    def test_without_a_cluster_it_says_what_to_do(self, by_hand: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run_scenario(["2P2C"]) == 2
        advice = "is down: start it with `make up`, or name a cluster with --broker HOST:PORT or MYQUEUE_URL"
        assert advice in capsys.readouterr().err

    def test_a_cluster_that_does_not_answer(self, by_hand: Path, capsys: pytest.CaptureFixture[str]) -> None:
        nobody = ["--broker", "127.0.0.1:1"]
        (by_hand / "producer_1.txt").write_bytes(GOOD + b"\n")
        began = time.monotonic()
        assert run_scenario(["2P2C", *nobody, "--out", str(by_hand)]) == 1
        assert "cannot connect" in capsys.readouterr().err
        for run in (run_producer, run_consumer):
            assert run(["--id", "1", "--topics", "T1", "--log-dir", str(by_hand), *nobody]) == 1
            assert "127.0.0.1:1: cannot connect" in capsys.readouterr().err
        assert time.monotonic() - began < 10, "told at once, not after many attempts"


class TestLineCount:
    def test_of_a_file_that_grows(self, tmp_path: Path) -> None:
        path = tmp_path / "consumer_1.txt"
        lines = LineCount(path)
        assert lines.now() == 0
        with path.open("a") as file:
            for text, count in (("a\nb", 1), ("", 1), ("\nc\n", 3)):
                file.write(text)
                file.flush()
                assert lines.now() == count
