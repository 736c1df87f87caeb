"""Workers as processes of their own, on a real stack: one is killed, messages fail for good, dead letters go back."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from myqueue import Admin, Lag, Message, MyQueueError, Producer, Reader, TopicNotFound
from myqueue.worker import DeadLetter, ReplayCounts, replay
from tests.waiting import until

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "myqueue.cli", "worker"]
WITHIN_S = 60.0
PARTITIONS, KEYS, EACH = 4, 24, 25
BAD = {("key-3", 7), ("key-11", 0), ("key-20", 24)}

HANDLERS = """
import os
import threading
from pathlib import Path

log = os.open(Path(__file__).with_name("log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
pause = threading.Event()


def say(what, message):
    place = f"{message.partition} {message.offset}"
    os.write(log, f"{what} {os.getpid()} {message.key.decode()} {message.text} {place}\\n".encode())


def handle(message):
    say("begin", message)
    pause.wait(0.02)
    if message.headers and not Path(__file__).with_name("repaired").exists():
        raise ValueError("cannot be handled")
    say("end", message)


async def handle_async(message):
    handle(message)


def steady(message):
    say("begin", message)
    pause.wait(0.06)
    say("end", message)


def slow(message):
    say("begin", message)
    pause.wait(1.5)
    say("end", message)


def hang(message):
    say("begin", message)
    pause.wait(60)
"""


class Line(NamedTuple):
    what: str
    process: int
    key: str
    number: int
    partition: int
    offset: int


class Handlers:
    """The folder with the functions that workers run, and what these have written down."""

    def __init__(self, folder: Path, url: str, topic: str) -> None:
        self.folder = folder
        self.topic = topic
        (folder / "handlers.py").write_text(HANDLERS)
        self._environment = os.environ | {"MYQUEUE_URL": url, "XDG_CONFIG_HOME": str(folder)}
        self._environment["PYTHONPATH"] = str(ROOT / "client")

    def start(self, function: str = "handle", *more: str) -> subprocess.Popen[bytes]:
        return self.run(f"handlers:{function}", *more)

    def run(self, function: str, *more: str) -> subprocess.Popen[bytes]:
        words = [*COMMAND, function, "--topic", self.topic, "--name", "shop", *more]
        return subprocess.Popen(words, cwd=self.folder, env=self._environment, stderr=subprocess.PIPE)

    def lines(self, what: str) -> list[Line]:
        path = self.folder / "log"
        words = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [Line(w[0], int(w[1]), w[2], int(w[3]), int(w[4]), int(w[5])) for w in words if w[0] == what]


@pytest.fixture
def handlers(tmp_path: Path, url: str, topic_name: str) -> Handlers:
    with Admin(url) as admin:
        admin.create_topic(topic_name, partitions=PARTITIONS)
    return Handlers(tmp_path, url, topic_name)


@pytest.fixture
def ended() -> Iterator[ExitStack]:
    """Kills what a failed test left behind."""
    with ExitStack() as stack:
        yield stack


def started(ended: ExitStack, process: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
    ended.enter_context(process)
    ended.callback(process.kill)
    return process


def said(process: subprocess.Popen[bytes]) -> str:
    assert process.stderr is not None
    return process.stderr.read().decode()


def send(url: str, topic: str, bad: set[tuple[str, int]], first: int = 0) -> None:
    """A round: the next EACH messages of each key."""
    with Producer(url, topic) as producer:
        for number in range(first, first + EACH):
            for key in (f"key-{index}" for index in range(KEYS)):
                headers = {"broken": "yes"} if (key, number) in bad else None
                producer.send(str(number), key=key, headers=headers)


def stored(url: str, topic: str) -> list[Message]:
    with Admin(url) as admin:
        bounds = admin.offsets(topic)
    found: list[Message] = []
    with Reader(url, topic, {number: bound.beginning_offset for number, bound in bounds.items()}) as reader:
        while any(offset < bounds[number].end_offset for number, offset in reader.position().items()):
            message = reader.poll(WITHIN_S)
            assert message is not None
            found.append(message)
    return found


def lag(url: str, topic: str) -> int | None:
    found = lag_of_worker(url, topic)
    return None if found is None else found.messages


def members(url: str, topic: str) -> set[str]:
    """Those that have partitions."""
    found = lag_of_worker(url, topic)
    return set() if found is None else {one.member for one in found.partitions.values() if one.member is not None}


def lag_of_worker(url: str, topic: str) -> Lag | None:
    """None before the worker has registered itself."""
    with Admin(url) as admin:
        ids = [found.consumer_id for found in admin.consumers(topic) if found.name == "shop"]
        return admin.lag(ids[0]) if ids else None


def test_one_of_two_is_killed_and_nothing_is_lost(url: str, handlers: Handlers, ended: ExitStack) -> None:
    topic, dead_topic = handlers.topic, f"{handlers.topic}.dead"
    settings = ["--max-retries", "1", "--concurrency", "6"]
    first = started(ended, handlers.start("handle", *settings))
    second = started(ended, handlers.start("handle", *settings))
    # One alone is done with all messages before the other one has started.
    until(lambda: len(members(url, topic)) == 2, within_s=WITHIN_S, what="both have partitions")
    send(url, topic, BAD)
    until(
        lambda: (
            {line.process for line in handlers.lines("end")} == {first.pid, second.pid}
            and len(handlers.lines("end")) > KEYS * EACH // 4
        ),
        within_s=WITHIN_S,
        what="both are at work",
    )
    first.kill()
    until(lambda: lag(url, topic) == 0, within_s=WITHIN_S, what="everything is committed")
    second.send_signal(signal.SIGTERM)
    assert second.wait(WITHIN_S) == 143
    text = said(second)
    assert "dead letters go to" in text
    assert "stopping" in text
    assert " dead, 0 in hand" in text

    wanted = {(f"key-{index}", number) for index in range(KEYS) for number in range(EACH)}
    assert {(line.key, line.number) for line in handlers.lines("end")} == wanted - BAD
    order: defaultdict[str, list[int]] = defaultdict(list)
    for line in handlers.lines("begin"):
        if line.number not in order[line.key]:
            order[line.key].append(line.number)
    assert order == {f"key-{index}": list(range(EACH)) for index in range(KEYS)}, "the order of first handlings"

    letters = [DeadLetter.of(message) for message in stored(url, dead_topic)]
    found = {(letter.message.key or b"").decode(): letter for letter in letters if letter is not None}
    assert {(key, int(letter.message.text)) for key, letter in found.items()} == BAD
    assert len(found) <= len(letters)
    at = {(line.key, line.number): (line.partition, line.offset) for line in handlers.lines("begin")}
    for key, letter in found.items():
        assert (letter.error, letter.reason, letter.attempts) == ("ValueError", "cannot be handled", 2)
        assert (letter.topic, letter.partition, letter.offset) == (topic, *at[key, int(letter.message.text)])
        assert (letter.worker, letter.own_headers()) == ("shop", (("broken", b"yes"),))


def test_nothing_is_handled_twice_when_a_worker_comes_and_goes(url: str, handlers: Handlers, ended: ExitStack) -> None:
    """What has begun of a partition is finished and committed before it goes to another process."""
    topic = handlers.topic
    send(url, topic, set())
    rounds = 1
    first = started(ended, handlers.start("steady", "--concurrency", "3"))
    until(lambda: len(handlers.lines("end")) > EACH, within_s=WITHIN_S, what="the first is at work")
    second = started(ended, handlers.start("steady", "--concurrency", "3"))

    def have_moved() -> bool:
        """However late the second one starts, there is enough left for it."""
        nonlocal rounds
        lines = handlers.lines("end")
        if len(lines) > (rounds - 0.5) * KEYS * EACH:
            send(url, topic, set(), rounds * EACH)
            rounds += 1
        return len([line for line in lines if line.process == second.pid]) > EACH

    until(have_moved, within_s=WITHIN_S, what="partitions have moved")
    second.send_signal(signal.SIGTERM)
    assert second.wait(WITHIN_S) == 143
    until(lambda: lag(url, topic) == 0, within_s=WITHIN_S, what="everything is committed")
    first.send_signal(signal.SIGTERM)
    assert first.wait(WITHIN_S) == 143
    times = Counter((line.key, line.number) for line in handlers.lines("begin"))
    sent = [(f"key-{index}", number) for index in range(KEYS) for number in range(rounds * EACH)]
    assert times == dict.fromkeys(sent, 1), said(first) + said(second)


def test_dead_letters_go_back_once_even_if_the_replay_is_interrupted(
    url: str, handlers: Handlers, ended: ExitStack
) -> None:
    topic, dead_topic = handlers.topic, f"{handlers.topic}.dead"
    sent = [(f"key-{number % 5}", number) for number in range(20)]
    with Producer(url, topic) as producer:
        for key, number in sent:
            producer.send(
                str(number), key=key, timestamp=1_700_000_000_000 + number, headers=[("a", b"\xff"), ("b", None)]
            )
    worker = started(ended, handlers.start("handle_async", "--max-retries", "0"))
    until(lambda: lag(url, topic) == 0, within_s=WITHIN_S, what="all are dead")
    worker.send_signal(signal.SIGINT)
    assert worker.wait(WITHIN_S) == 130

    looked: list[DeadLetter] = []
    assert replay(url, dead_letter_topic=dead_topic, dry_run=True, on_letter=looked.append) == ReplayCounts(20)
    assert len(looked) == 20
    assert replay(url, dead_letter_topic=dead_topic, error="KeyError") == ReplayCounts(0, skipped=20)
    assert len(stored(url, topic)) == 20, "nothing was changed"
    with pytest.raises(TopicNotFound):
        replay(url, dead_letter_topic=dead_topic, to=f"{topic}.other")
    assert replay(url, dead_letter_topic=dead_topic, limit=5) == ReplayCounts(5)
    until(
        lambda: all(replay(url, dead_letter_topic=dead_topic, dry_run=True) == ReplayCounts(15) for _ in range(6)),
        within_s=10,
        what="all read managers know the replay's cursors",
    )

    shell = [sys.executable, "-m", "myqueue.cli", "dead-letter", "replay", dead_topic, "--url", url, "--dry-run"]
    table = subprocess.run(shell, check=True, capture_output=True, text=True, timeout=WITHIN_S)
    assert table.stdout.splitlines()[0].split() == ["LETTER", "FROM", "ERROR", "REASON", "ATTEMPTS", "REPLAYS", "AFTER"]
    assert table.stdout.count("ValueError  cannot be handled") == 15
    assert table.stderr == f"15 dead letters of {dead_topic} would be replayed (--dry-run)\n"
    objects = subprocess.run([*shell, "-o", "json", "-n", "2"], check=True, capture_output=True, timeout=WITHIN_S)
    assert [json.loads(line)["from"]["topic"] for line in objects.stdout.splitlines()] == [topic, topic]

    class Interrupted(Exception):
        pass

    def interrupt(letter: DeadLetter) -> None:
        raise Interrupted

    for _ in range(3):  # the letter is sent, but the cursor does not pass it
        with pytest.raises(Interrupted):
            replay(url, dead_letter_topic=dead_topic, on_letter=interrupt)
    assert replay(url, dead_letter_topic=dead_topic) == ReplayCounts(15)
    assert replay(url, dead_letter_topic=dead_topic) == ReplayCounts(0)
    assert replay(url, dead_letter_topic=dead_topic, error="ValueError") == ReplayCounts(20), "a position of its own"

    found = stored(url, topic)
    assert len(found) == 40, "each letter is stored once, whatever it was sent for"
    again = [message for message in found if dict(message.headers).get("dead-letter-replays") is not None]
    assert sorted(((m.key or b"").decode(), int(m.value)) for m in again) == sorted(sent)
    before = {m.value: m for m in found if m not in again}
    for message in again:
        original = before[message.value]
        assert (message.partition, message.timestamp) == (original.partition, original.timestamp)
        assert message.headers == (("a", b"\xff"), ("b", None), ("dead-letter-replays", b"1"))

    (handlers.folder / "repaired").touch()
    worker = started(ended, handlers.start())
    until(lambda: lag(url, topic) == 0, within_s=WITHIN_S, what="the replayed ones are handled")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(WITHIN_S) == 143
    assert Counter((line.key, line.number) for line in handlers.lines("end")) == Counter(sent)


def test_a_letter_that_dies_again_says_how_often_it_was_replayed(
    url: str, handlers: Handlers, ended: ExitStack
) -> None:
    dead_topic = f"{handlers.topic}.dead"
    with Producer(url, handlers.topic) as producer:
        producer.send("1", key="a", headers={"broken": "yes"})
    worker = started(ended, handlers.start("handle", "--max-retries", "0"))
    for replays in range(3):
        until(lambda n=replays: _letters(url, dead_topic) == n + 1, within_s=WITHIN_S)  # type: ignore[misc]
        replay(url, dead_letter_topic=dead_topic)
    until(lambda: _letters(url, dead_topic) == 4, within_s=WITHIN_S)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(WITHIN_S) == 143
    letters = [DeadLetter.of(message) for message in stored(url, dead_topic)]
    assert sorted(letter.replays for letter in letters if letter is not None) == [0, 1, 2, 3]


def _letters(url: str, topic: str) -> int:
    try:
        return len(stored(url, topic))
    except MyQueueError:
        return 0


def test_sigterm_lets_a_handler_finish_and_a_second_one_does_not(
    url: str, handlers: Handlers, ended: ExitStack
) -> None:
    with Producer(url, handlers.topic) as producer:
        producer.send("1", key="a")
    worker = started(ended, handlers.start("slow"))
    until(lambda: handlers.lines("begin"), within_s=WITHIN_S)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(WITHIN_S) == 143
    assert len(handlers.lines("end")) == 1
    assert lag(url, handlers.topic) == 0

    with Producer(url, handlers.topic) as producer:
        producer.send("2", key="a")
    worker = started(ended, handlers.start("hang"))
    until(lambda: len(handlers.lines("begin")) == 2, within_s=WITHIN_S)
    worker.send_signal(signal.SIGTERM)
    assert worker.stderr is not None
    assert any(b"stopping; 1 handler still to end" in line for line in iter(worker.stderr.readline, b""))
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(10) == 1
    assert "1 handler did not end in time; their messages are delivered again" in said(worker)
    assert lag(url, handlers.topic) == 1


def test_the_example_adds_up(url: str) -> None:
    words = [sys.executable, "-m", "examples.order_worker", "--url", url]
    ran = subprocess.run(words, check=False, capture_output=True, text=True, timeout=WITHIN_S)
    assert (ran.returncode, ran.stderr.count("gave up")) == (0, 4), ran.stderr
    assert "3 replayed, 1 left" in ran.stdout
    assert "It adds up: 300 orders of 20 customers, each charged once" in ran.stdout


@pytest.mark.parametrize(
    ("function", "more", "message"),
    [
        ("nowhere:handle", [], "there is no module 'nowhere', neither in "),
        ("handlers:handel", [], "handlers has no function 'handel'"),
        ("handlers:log", [], "handlers:log: is no function, but int"),
        ("handlers", [], "'handlers': write it as MODULE:FUNCTION, such as billing:charge"),
        ("broken:handle", [], "the module 'broken' cannot be imported: ZeroDivisionError: division by zero ("),
        ("needy:handle", [], "the module 'needy' cannot be imported: ModuleNotFoundError: No module named 'not_here'"),
        ("handlers:handle", ["--stop-timeout", "soon"], "--stop-timeout: 'soon' is no duration"),
        ("handlers:handle", ["--from", "17"], "--from: an offset belongs to a partition"),
        ("handlers:handle", ["--name", ""], "--name: must not be empty"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path: Path, function: str, more: list[str], message: str) -> None:
    handlers = Handlers(tmp_path, "http://127.0.0.1:1", "orders")
    (tmp_path / "broken.py").write_text("1 / 0\n")
    (tmp_path / "needy.py").write_text("import not_here\n")
    with handlers.run(function, *more) as process:
        assert process.wait(WITHIN_S) == 2
        assert said(process).startswith(f"error: {message}")
