"""The command line as a process of its own: signals, pipes that end, and a terminal."""

import os
import pty
import select
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from myqueue import Admin, Producer
from tests.waiting import until

COMMAND = [sys.executable, "-m", "myqueue.cli"]
WITHIN_S = 30.0
QUESTION = b"[y/N]: "


@pytest.fixture
def environment(url: str, tmp_path: Path) -> dict[str, str]:
    more = {"MYQUEUE_URL": url, "XDG_CONFIG_HOME": str(tmp_path), "TERM": "xterm", "PYTHONPATH": "client"}
    return {name: value for name, value in os.environ.items() if name not in ("MYQUEUE_PROFILE", "NO_COLOR")} | more


@pytest.fixture
def filled(url: str, topic_name: str) -> str:
    """A topic with one partition and more than a pipe holds."""
    with Admin(url) as admin:
        admin.create_topic(topic_name, partitions=1)
    with Producer(url, topic_name) as producer:
        producer.send_many([f"{number:0200d}" for number in range(5000)]).result(WITHIN_S)
    return topic_name


def test_a_reader_that_has_enough_ends_it_quietly_and_what_it_did_not_get_is_not_committed(
    environment: dict[str, str], url: str, filled: str
) -> None:
    words = [*COMMAND, "consume", filled, "--name", "short"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, env=environment, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == b"0" * 200 + b"\n"
        process.stdout.close()
        assert process.wait(WITHIN_S) == 141
        assert process.stderr.read() == b""
    with Admin(url) as admin:
        (consumer,) = until(lambda: admin.consumers(filled), within_s=10)
        assert admin.lag(consumer.consumer_id).messages > 3000  # a pipe holds 64 KiB, 326 of these lines


def test_ctrl_c_ends_a_reader_cleanly_and_messages_do_not_wait_in_a_buffer(
    environment: dict[str, str], url: str, topic_name: str
) -> None:
    with Producer(url, topic_name) as producer:
        producer.send("one").result(WITHIN_S)
        words = [*COMMAND, "consume", topic_name, "-o", "json"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(words, env=environment, **pipes) as process:  # type: ignore[call-overload]
            assert b'"value":"one"' in process.stdout.readline()
            producer.send("two").result(WITHIN_S)
            assert b'"value":"two"' in process.stdout.readline()
            process.send_signal(signal.SIGINT)
            assert process.wait(WITHIN_S) == 130
            assert (process.stdout.read(), process.stderr.read()) == (b"", b"")
    with Admin(url) as admin:
        assert admin.consumers(topic_name) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_or_sigterm_while_producing_says_what_was_stored(
    environment: dict[str, str], url: str, topic_name: str, number: int, code: int
) -> None:
    with Admin(url) as admin:
        admin.create_topic(topic_name, partitions=1)
        pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen([*COMMAND, "produce", topic_name], env=environment, **pipes) as process:  # type: ignore[call-overload]
            process.stdin.write(b"one\ntwo\nhalf")
            process.stdin.flush()
            deadline = time.monotonic() + WITHIN_S
            while admin.offsets(topic_name)[0].end_offset < 2:
                assert time.monotonic() < deadline, "not stored"
            process.send_signal(number)
            assert process.wait(WITHIN_S) == code
            assert process.stderr.read() == f"2 of 2 messages sent to {topic_name} were acknowledged\n".encode()


def test_sigterm_commits_what_was_printed_and_gives_the_partitions_back(
    environment: dict[str, str], url: str, topic_name: str
) -> None:
    with Producer(url, topic_name) as producer:
        for number in range(10):
            producer.send(str(number))
        producer.flush()
    words = [*COMMAND, "consume", topic_name, "--name", "ended"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, env=environment, **pipes) as process:  # type: ignore[call-overload]
        assert sorted(process.stdout.readline() for _ in range(10)) == [b"%d\n" % number for number in range(10)]
        process.send_signal(signal.SIGTERM)
        assert process.wait(WITHIN_S) == 143
        assert (process.stdout.read(), process.stderr.read()) == (b"", b"")
    with Admin(url) as admin:
        (consumer,) = until(lambda: admin.consumers(topic_name), within_s=10)
        lag = admin.lag(consumer.consumer_id)
    assert lag.messages <= 1  # the last one may have been in hand
    assert {partition.member for partition in lag.partitions.values()} == {None}


@pytest.mark.parametrize("words", [["consume", "-e"], ["--help"], ["--version"]])
def test_a_full_disk_is_an_error_and_no_traceback(environment: dict[str, str], filled: str, words: list[str]) -> None:
    if words[0] == "consume":
        words = ["consume", filled, "-e"]
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            [*COMMAND, *words], env=environment, stdout=full, stderr=subprocess.PIPE, timeout=WITHIN_S
        )
    assert (ended.returncode, ended.stderr) == (1, b"error: No space left on device\n")


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("produce {topic} <&-", 0),
        ("topic describe no-such-topic 2>&-", 4),
        ("topic list <&- >&- 2>&-", 0),
    ],
)
def test_streams_that_are_closed_are_nowhere(environment: dict[str, str], filled: str, line: str, code: int) -> None:
    words = f"{shlex.join(COMMAND)} {line.format(topic=filled)}"
    ended = subprocess.run(["sh", "-c", words], env=environment, capture_output=True, timeout=WITHIN_S)
    assert ended.returncode == code
    assert b"Traceback" not in ended.stderr
    assert b"Exception" not in ended.stderr


def test_nothing_of_others_controls_the_terminal(environment: dict[str, str], url: str, topic_name: str) -> None:
    with Producer(url, topic_name) as producer:
        producer.send("a\x9b31mb\x1b]0;title\x07").result(WITHIN_S)
    for more in ([], ["-o", "json"]):
        code, seen = on_terminal([*COMMAND, "consume", topic_name, "-e", *more], environment)
        assert code == 0
        assert not {"\x9b", "\x1b", "\x07"} & set(seen.decode())
        assert b"31mb" in seen


def test_on_a_terminal_deleting_asks_and_tables_have_colours(
    environment: dict[str, str], url: str, filled: str
) -> None:
    code, seen = on_terminal([*COMMAND, "topic", "delete", filled], environment, QUESTION, b"n\n")
    assert code == 1
    assert f"Delete topic {filled} with 5,000 messages and 0 consumers? [y/N]: n".encode() in seen
    assert b"nothing was deleted" in seen
    code, seen = on_terminal([*COMMAND, "topic", "describe", filled], environment)
    assert code == 0
    assert b"\x1b[1mPARTITION\x1b[0m" in seen
    code, seen = on_terminal([*COMMAND, "topic", "delete", filled], environment, QUESTION, b"\x03")
    assert code == 130
    code, seen = on_terminal([*COMMAND, "topic", "delete", filled], environment, QUESTION, b"y\n")
    assert code == 0
    assert f"topic {filled} is deleted".encode() in seen
    with Admin(url) as admin:  # a standby may not know yet that it is deleted
        until(lambda: filled not in admin.list_topics(), within_s=10, what="the topic is gone")


def on_terminal(
    words: list[str], environment: dict[str, str], question: bytes = b"", answer: bytes = b""
) -> tuple[int, bytes]:
    """Exit code and everything that is to be seen, when this is answered as soon as that was asked."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(words[0], words, environment)
    seen = b""
    deadline = time.monotonic() + WITHIN_S
    answered = False
    while time.monotonic() < deadline:
        silent = not select.select([terminal], [], [], 1.0)[0]
        try:
            seen += b"" if silent else os.read(terminal, 1 << 16)
        except OSError:  # the other end is closed
            break
        # Python does not see a Ctrl-C that comes just before it begins to wait for a line: people press it again.
        if answer and question in seen and (not answered or (silent and answer == b"\x03")):
            os.write(terminal, answer)
            answered = True
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), seen
