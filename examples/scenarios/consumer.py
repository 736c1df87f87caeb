"""Reads topics from now on and stores them as `consumer_<id>.txt`, one line `topic<TAB>msg` a message.

    examples/run-consumer --id 1 --topics T1 T2 T3 --broker HOST:PORT --log-dir DIR

Every run is a consumer of its own, which sees all messages of its topics. Ctrl-C ends it at once; SIGTERM when it has
read as far as the topics reach by then.
"""

import argparse
import queue
import secrets
import signal
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from types import FrameType
from typing import TextIO

from examples.scenarios.cluster import NoCluster, add_broker_option, found_url, warn_if_not_ready
from examples.scenarios.log_file import consumed_line, consumer_file
from examples.scenarios.producer import number, topic_name
from myqueue import Admin, Consumer, Message, MyQueueError, TopicExists

POLL_S = 0.2  # a signal is noticed after at most this long
READING = "from now on"  # printed once it is registered: it misses no message from then on


class ReaderFailed(Exception):
    """A defect: a consumer raises only MyQueueError."""


class Ending:
    """Only flags: a signal handler must not wait for a lock that the interrupted code may hold."""

    def __init__(self) -> None:
        self.at_end = False
        self.now = False

    def ask_at_end(self, _number: int, _frame: FrameType | None) -> None:
        self.at_end = True

    def ask_now(self, _number: int, _frame: FrameType | None) -> None:
        self.now = True


class Reader(threading.Thread):
    """Reads one topic into the queue shared by all readers; its last item is None or the error."""

    def __init__(self, consumer: Consumer, found: "queue.Queue[Message | Exception | None]", ending: Ending) -> None:
        super().__init__(daemon=True)
        self._consumer = consumer
        self._found = found
        self._ending = ending
        self._places: dict[int, int] = {}  # the next offset of each partition
        self._ends: dict[int, int] | None = None  # the ends of the topic when SIGTERM came

    def run(self) -> None:
        last_item: Exception | None = None
        try:
            while not self._ending.now and not (self._ending.at_end and self._is_at_end()):
                message = self._consumer.poll(POLL_S)
                # Delivery is at least once: skip offsets that are in the file already.
                if message is not None and message.offset >= self._places.get(message.partition, 0):
                    self._found.put(message)
                    self._places[message.partition] = message.offset + 1
        except MyQueueError as error:
            last_item = error
        except Exception as error:  # noqa: BLE001 - the writer raises it
            last_item = ReaderFailed(f"a defect: {type(error).__name__}: {error}")
        self._found.put(last_item)

    def _is_at_end(self) -> bool:
        if self._ends is None:
            lag = self._consumer.lag()
            self._ends = {partition: one.end_offset for partition, one in lag.partitions.items() if one.messages}
        positions = self._consumer.position()
        return all(max(self._places.get(p, 0), positions.get(p, 0)) >= end for p, end in self._ends.items())


class Limits:
    """The conditions to end: number of messages, idle time, deadline."""

    def __init__(self, now: float, messages: int | None, idle_s: float | None, deadline_s: float | None) -> None:
        self.count = 0
        self._began = self._last = now
        self._messages = messages
        self._idle_s = idle_s
        self._deadline_s = deadline_s

    def add(self, now: float) -> None:
        self.count += 1
        self._last = now

    def are_reached(self, now: float) -> bool:
        return (
            (self._messages is not None and self.count >= self._messages)
            or (self._idle_s is not None and now - self._last >= self._idle_s)
            or (self._deadline_s is not None and now - self._began >= self._deadline_s)
        )


def write_messages(consumers: list[Consumer], file: TextIO, limits: Limits, ending: Ending) -> None:
    found: queue.Queue[Message | Exception | None] = queue.Queue(maxsize=10_000)
    for consumer in consumers:
        Reader(consumer, found, ending).start()
    reading = len(consumers)
    while reading and not ending.now and not limits.are_reached(time.monotonic()):
        try:
            one = found.get(timeout=POLL_S)
        except queue.Empty:
            continue
        if one is None:
            reading -= 1
        elif isinstance(one, Exception):
            raise one
        else:
            file.write(consumed_line(one.topic, one.value))
            limits.add(time.monotonic())
        if found.empty():
            file.flush()  # readers of the file see whole lines


def consume(url: str, name: str, topics: list[str], file: TextIO, limits: Limits, ending: Ending) -> None:
    with Admin(url) as admin:
        for topic in topics:
            with suppress(TopicExists):
                admin.create_topic(topic)
    with ExitStack() as stack:
        # A new name: the consumer begins now and shares its messages with no other.
        whole = f"{name}-{secrets.token_hex(6)}"
        consumers = [stack.enter_context(Consumer(url, topic, whole, start="latest")) for topic in topics]
        print(f"{name}: reading {' '.join(topics)} {READING}", flush=True)
        write_messages(consumers, file, limits, ending)


def seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError("must be a number of seconds above 0")
    return value


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="run-consumer", description=__doc__.split("\n")[0])
    parser.add_argument("--id", type=number, required=True, help="of the consumer, and in the name of its file")
    parser.add_argument("--topics", type=topic_name, nargs="+", required=True, help="made if they are missing")
    add_broker_option(parser)
    parser.add_argument(
        "--log-dir", "--log_loc", type=Path, default=Path(), metavar="DIR", help="for consumer_<id>.txt (default: .)"
    )
    parser.add_argument("-n", type=number, metavar="N", help="end after N messages")
    parser.add_argument("--idle-s", type=seconds, metavar="S", help="end after S seconds without a message")
    parser.add_argument("--deadline-s", type=seconds, metavar="S", help="end after S seconds in any case")
    given = parser.parse_args(arguments)
    me, path = f"C{given.id}", consumer_file(given.log_dir, given.id)
    limits = Limits(time.monotonic(), given.n, given.idle_s, given.deadline_s)
    try:
        url = found_url(given.broker)
        given.log_dir.mkdir(parents=True, exist_ok=True)
        file = path.open("w", encoding="utf-8", newline="\n")  # the same bytes on every machine
    except NoCluster as error:
        print(f"{me}: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"{me}: {error.filename}: {error.strerror}; --log-dir says where the file goes", file=sys.stderr)
        return 2
    ending = Ending()
    signal.signal(signal.SIGTERM, ending.ask_at_end)
    signal.signal(signal.SIGINT, ending.ask_now)
    try:
        with file:
            warn_if_not_ready(me, url)
            consume(url, me, list(dict.fromkeys(given.topics)), file, limits, ending)
    except (MyQueueError, ReaderFailed) as error:
        print(f"{me}: {url}: {error}; {limits.count} messages are in {path}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{me}: {path}: {error.strerror}; not all that was read is in it", file=sys.stderr)
        return 1
    print(f"{me}: {limits.count} messages in {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
