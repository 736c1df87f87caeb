"""The scenario runners as a user runs them: real processes, both kinds of storage, and api-test.sh over every route."""

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from examples.scenarios.log_file import read_consumed
from myqueue import Admin, Producer
from myqueue.protocol.routes import ROUTES
from stack.home import Home
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
OWN = {name: value for name, value in os.environ.items() if not name.startswith("MYQUEUE_")}


@pytest.fixture(scope="module", autouse=True)
def library_alone(tmp_path_factory: pytest.TempPathFactory) -> None:
    """As where only the library is installed: pyarrow loads pandas and numpy if they are there, most of the life of
    such a process."""
    folder = tmp_path_factory.mktemp("library-alone")
    for name in ("pandas", "numpy"):
        (folder / f"{name}.py").write_text(f"raise ModuleNotFoundError('not installed', name={name!r})\n")
    OWN["PYTHONPATH"] = str(folder)


def start(folder: Path, command: str, *arguments: object, **environment: str) -> subprocess.Popen[str]:
    """One of the commands in examples/, from another folder than the checkout's."""
    return subprocess.Popen(
        [ROOT / "examples" / command, *map(str, arguments)],
        cwd=folder,
        env={**OWN, "COLUMNS": "100", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen[str], within_s: float = 90) -> str:
    try:
        output, _ = process.communicate(timeout=within_s)
    except subprocess.TimeoutExpired:
        process.terminate()  # it takes with it what it has started
        output, _ = process.communicate(timeout=60)
        raise AssertionError(f"not ended after {within_s} s: {output}") from None
    return output


def run(folder: Path, command: str, *arguments: object, **environment: str) -> tuple[int, str]:
    process = start(folder, command, *arguments, **environment)
    output = finish(process)
    return process.returncode, output


def messages_in(folder: Path, consumer: int) -> int:
    return len(read_consumed(folder / f"consumer_{consumer}.txt"))


def run_on_a_stack_of_its_own(folder: Path, storage: str) -> None:
    temporary = folder / "temporary"
    temporary.mkdir()
    process = start(
        folder,
        "scenarios/launch",
        *("run", "2P2C", "5P3C", "--out", folder),
        MYQUEUE_STORAGE=storage,
        MYQUEUE_READ_MANAGERS="1",
        TMPDIR=str(temporary),
    )
    try:
        first = folder / "2P2C" / "consumer_1.txt"
        until(lambda: first.exists() and first.stat().st_size > 0, within_s=120, what="messages are read")
        (own,) = temporary.glob("myqueue-scenario-*")
        layout = Home(own / "home").layout()
        assert layout is not None
        assert layout.stack_config().storage == storage
        assert bool(list((own / "home" / "data").glob("broker-*"))) == (storage == "disk")
    finally:
        output = finish(process)
    assert process.returncode == 0, output
    assert "✓ 2P2C" in output
    assert "✓ 5P3C" in output
    assert messages_in(folder / "2P2C", 2) == 300
    assert messages_in(folder / "5P3C", 1) == 600
    assert not list(temporary.iterdir())


@pytest.fixture(scope="module")
def in_memory(library_alone: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Future[None]]:
    """Goes on beside the other tests: a stack that starts waits more than it works."""
    with ThreadPoolExecutor(1) as beside:
        yield beside.submit(run_on_a_stack_of_its_own, tmp_path_factory.mktemp("in-memory"), "memory")


@pytest.mark.usefixtures("in_memory")
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_both_scenarios_on_disk_also_where_their_topics_are_there_already(url: str, tmp_path: Path) -> None:
    for name, counts in (("2P2C", [300, 300]), ("5P3C", [600, 375, 375])):
        code, output = run(tmp_path, name, "--broker", url, "--out", tmp_path / name)
        assert code == 0, output
        assert f"✓ {name}: complete, nothing twice, every lane in order" in output
        assert [messages_in(tmp_path / name, 1 + place) for place in range(len(counts))] == counts


def test_a_paced_producer_and_consumers_by_hand(url: str, tmp_path: Path, topic_name: str) -> None:
    log = [("23:59:59", "a", "1"), ("00:00:01", "b", "1"), ("23:59:59", "c \\ ü", "2"), ("00:00:01", "d", "2")]
    lines = [f"{ts}\t{message}\t{lane}\t{topic_name}\n" for ts, message, lane in log]
    (tmp_path / "producer_7.txt").write_text("".join(lines) + "12:00:00\tnot sent\t1\tanother\n")
    consuming = ("run-consumer", "--topics", topic_name, "--deadline-s", 100)
    counting = start(tmp_path, *consuming, "--id", 7, "-n", 4, MYQUEUE_URL=url)
    endless = start(tmp_path, *consuming, "--id", 8, MYQUEUE_URL=url)
    for name, consumer in (("C7", counting), ("C8", endless)):
        assert consumer.stdout is not None
        assert consumer.stdout.readline() == f"{name}: reading {topic_name} from now on\n"
    began = time.monotonic()
    code, output = run(
        tmp_path,
        "run-producer",
        *("--id", 7, "--topics", topic_name, "--broker", urlsplit(url).netloc, "--log_loc", tmp_path, "--paced"),
    )
    assert code == 0, output
    assert "P7: 4 lines of 2 lanes sent" in output
    assert "1 of other topics left out" in output
    assert time.monotonic() - began >= 2
    assert "C7: 4 messages in consumer_7.txt" in finish(counting)
    until(lambda: messages_in(tmp_path, 8) == 4, within_s=10, what="the other one has them too")
    endless.send_signal(signal.SIGINT)
    assert "C8: 4 messages in consumer_8.txt" in finish(endless)
    assert (counting.returncode, endless.returncode) == (0, 0)
    read = [message for _, message in read_consumed(tmp_path / "consumer_7.txt")]
    assert sorted(read) == sorted(message for _, message, _ in log)
    assert read.index("a") < read.index("b")
    assert read.index("c \\ ü") < read.index("d")


def test_a_consumer_whose_disk_is_full_says_so(url: str, tmp_path: Path, topic_name: str) -> None:
    (tmp_path / "consumer_9.txt").symlink_to("/dev/full")
    consumer = start(tmp_path, "run-consumer", "--id", 9, "--topics", topic_name, "--deadline-s", 60, MYQUEUE_URL=url)
    assert consumer.stdout is not None
    assert consumer.stdout.readline() == f"C9: reading {topic_name} from now on\n"
    with Producer(url, topic=topic_name) as producer:
        producer.send("anything").result(timeout=10)
    output = finish(consumer)
    assert "consumer_9.txt: No space left on device; not all that was read is in it" in output
    assert "Traceback" not in output
    assert consumer.returncode == 1


class TestApi:
    def test_it_walks_every_route_and_leaves_nothing(self, url: str, tmp_path: Path) -> None:
        address = urlsplit(url)
        with Admin(url) as admin:
            before = admin.list_topics()
            code, output = run(tmp_path, "api-test.sh", address.hostname, address.port or 80, TMPDIR=str(tmp_path))
            assert code == 0, output
            # A standby may not know yet that what it has made is deleted.
            until(lambda: admin.list_topics() == before, within_s=10, what="nothing is left")
        walked = set(re.findall(r"^ok +([A-Z]+) +(\S+)  2[0-9][0-9]$", output, re.MULTILINE))
        assert {(route.method, route.path) for route in ROUTES} <= walked
        assert not list(tmp_path.iterdir())

    @pytest.mark.slow
    def test_it_finds_wrong_answers(self, tmp_path: Path, impostor: str) -> None:
        code, output = run(tmp_path, "api-test.sh", "127.0.0.1", impostor)
        assert code == 1
        assert 'WRONG  GET    /readyz  200 as expected, but without "checks":' in output
        assert "WRONG  POST   /topics  200 instead of 201" in output
        good, bad = (len(re.findall(f"^{word} ", output, re.MULTILINE)) for word in ("ok", "WRONG"))
        assert good < 5 < bad
        assert output.splitlines()[-1] == f"{good + bad} calls, {bad} wrong"


@pytest.mark.timeout(240)  # so that on a slow machine no stack is left behind
class TestStackOfItsOwn:
    @pytest.mark.slow
    def test_both_scenarios_in_memory(self, in_memory: Future[None]) -> None:
        in_memory.result()

    @pytest.mark.slow
    def test_both_scenarios_on_disk(self, tmp_path: Path) -> None:
        run_on_a_stack_of_its_own(tmp_path, "disk")


class Impostor(BaseHTTPRequestHandler):
    """Says yes to everything."""

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"status": "success"}')

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = answer

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def impostor() -> Iterator[str]:
    """The port of a server that is not ours."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Impostor) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield str(server.server_address[1])
        server.shutdown()
        thread.join()
