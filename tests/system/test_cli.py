"""The command line against the whole stack: what each command does, and how it fails."""

import base64
import json
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from myqueue import Admin, Producer
from myqueue.cli.app import app
from tests.waiting import until

Cli = Callable[..., Result]


@pytest.fixture
def cli(url: str, tmp_path: Path) -> Cli:
    """Runs a command in this process; the file of profiles is the test's own."""
    runner = CliRunner(env={"MYQUEUE_URL": url, "MYQUEUE_PROFILE": None, "XDG_CONFIG_HOME": str(tmp_path)})

    def run(*words: str, given: str | bytes | None = None) -> Result:
        return runner.invoke(app, words, input=given, prog_name="myqueue")

    return run


def good(result: Result) -> str:
    assert result.exit_code == 0, result.output
    return result.stdout


def document(result: Result) -> Any:
    return json.loads(good(result))


def objects(result: Result) -> list[Any]:
    return [json.loads(line) for line in good(result).splitlines()]


def failed(result: Result, code: int, message: str) -> None:
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    assert message in result.stderr
    assert "Traceback" not in result.stderr


# Topics


def test_a_topic_from_its_creation_to_its_end(cli: Cli, topic_name: str) -> None:
    settings = ["--partitions", "2", "--retention", "7d", "--retention-bytes", "1GiB"]
    created = good(cli("topic", "create", topic_name, *settings))
    assert created == (
        f"topic {topic_name}: 2 partitions, 3 copies of each, messages kept for 7d and up to 1.0 GiB a partition\n"
    )
    again = document(cli("topic", "create", topic_name, *settings, "--if-not-exists", "-o", "json"))
    assert (again["name"], again["partitions"], again["retention_ms"]) == (topic_name, 2, 604_800_000)
    until(
        lambda: all(topic_name in good(cli("topic", "list")).split() for _ in range(6)),
        within_s=10,
        what="all read managers list it",
    )
    assert document(cli("-o", "json", "topic", "list", topic_name)) == [{"name": topic_name}]
    assert document(cli("topic", "-o", "json", "list", "no-such-*")) == []
    (row,) = document(cli("topic", "list", topic_name, "--long", "--output", "json"))
    assert (row["partitions"], row["replication"], row["messages"]) == (2, 3, 0)

    described = good(cli("topic", "describe", topic_name)).splitlines()
    assert described[0] == created.strip()
    assert described[3].split() == ["PARTITION", "LEADER", "REPLICAS", "TERM", "FIRST", "END", "MESSAGES", "SIZE"]
    found = document(cli("topic", "describe", topic_name, "-o", "json"))
    assert [partition["partition"] for partition in found["partition_list"]] == [0, 1]

    failed(
        cli("topic", "create", topic_name),
        1,
        f"error: topic already exists: {topic_name!r} (40901)\nhint: with --if-not-exists",
    )
    other = cli("topic", "create", topic_name, "--if-not-exists", "-p", "3")
    failed(other, 1, "error: topic already exists with other settings; its retention can be changed")
    failed(other, 1, f": {topic_name!r} (40901)\n")
    failed(other, 1, "'myqueue topic alter' changes its retention\n")
    failed(cli("topic", "delete", topic_name), 2, "error: --yes: needed where nobody can be asked")
    assert good(cli("topic", "delete", topic_name, "--yes")) == f"topic {topic_name} is deleted\n"
    until(
        lambda: all(cli("topic", "describe", topic_name).exit_code == 4 for _ in range(6)),
        within_s=10,
        what="all read managers know that it is gone",
    )
    for verb in ("describe", "delete"):
        failed(
            cli("topic", verb, topic_name),
            4,
            f"error: topic not found: {topic_name!r} (40401)\nhint: 'myqueue topic list' shows",
        )


def test_what_cannot_be_a_topic_is_refused_with_its_option_or_the_servers_message(cli: Cli) -> None:
    failed(cli("topic", "create", "no/slash"), 2, "topic name must be 1 to 200 characters")
    failed(cli("topic", "create", "x", "-p", "0"), 2, "'--partitions'")
    failed(cli("topic", "create", "x", "--retention", "long"), 2, "error: --retention: 'long' is no duration")
    failed(cli("topic", "create", "x", "--retention-bytes", "?"), 2, "error: --retention-bytes: '?' is no size")


# Produce and consume


def test_lines_go_in_and_come_out_in_every_shape(cli: Cli, topic_name: str, tmp_path: Path) -> None:
    good(cli("topic", "create", topic_name, "-p", "1"))
    sent = cli("produce", topic_name, "-K", "\\t", "-H", "a=1", "-H", "b=", given="k1\tone\nk2\t\nk1\tthree")
    assert good(sent) == ""
    assert sent.stderr.startswith(f"3 messages to {topic_name} (14 B) in ")
    lines = tmp_path / "lines"
    lines.write_bytes(b"four\nfive \xff\0six\n\0")
    found = document(cli("produce", topic_name, str(lines), "-0", "--key", "k3", "--compression", "lz4", "-o", "json"))
    assert (found["topic"], found["sent"], found["acknowledged"]) == (topic_name, 2, 2)
    assert cli("produce", topic_name, "-q", "-m", "seven", "-m", "eight", "-p", "0").stderr == ""

    def consume(*words: str) -> bytes:
        result = cli("consume", topic_name, *words)
        good(result)
        return result.stdout_bytes

    assert consume("-e") == b"one\n\nthree\nfour\nfive \xff\nsix\n\nseven\neight\n"
    form = consume("-e", "-n", "3", "--format", "%t %p %o %k [%s] %h\\n").decode().replace(topic_name, "t")
    assert form == "t 0 0 k1 [one] a=1,b=\nt 0 1 k2 [] a=1,b=\nt 0 2 k1 [three] a=1,b=\n"
    assert consume("-n", "1", "--from", "5") == b"seven\n"
    assert consume("-e", "--from", "-1") == consume("-e", "--from", "6", "--partition", "0") == b"eight\n"
    assert consume("-e", "--from", "latest") == consume("-e", "--from", "2999-01-01") == b""
    assert consume("-e", "--from", "-1h", "-n", "1") == consume("-e", "-f", "@1700000000", "-n", "1") == b"one\n"
    assert good(cli("tail", topic_name, "-e")) == ""

    messages = objects(cli("consume", topic_name, "-e", "-o", "json"))
    assert [message["offset"] for message in messages] == list(range(7))
    assert messages[0] | {"timestamp": 0} == {
        "topic": topic_name,
        "partition": 0,
        "offset": 0,
        "timestamp": 0,
        "key": "k1",
        "value": "one",
        "headers": [{"key": "a", "value": "1"}, {"key": "b", "value": ""}],
    }
    assert base64.b64decode(messages[3]["value"]["base64"]) == b"four\nfive \xff"
    assert document(cli("consumer", "list", topic_name, "-o", "json")) == []  # reading has left nothing behind


def test_all_partitions_are_read_to_where_they_ended(cli: Cli, url: str, topic_name: str) -> None:
    with Producer(url, topic_name, batch_bytes=10_000) as producer:
        for number in range(5000):
            producer.send(f"{number:050d}", key=str(number))
    lines = good(cli("consume", topic_name, "-e", "--format", "%p %s\\n")).splitlines()
    assert sorted(line.split()[1] for line in lines) == [f"{number:050d}" for number in range(5000)]
    for partition in range(4):
        of_one = [line for line in lines if line.startswith(f"{partition} ")]
        assert of_one == sorted(of_one)
        assert (
            good(cli("consume", topic_name, "-e", "-p", str(partition), "--format", "%p %s\\n")).split("\n")[:-1]
            == of_one
        )
    assert len(good(cli("consume", topic_name, "-e", "--from", "-3")).splitlines()) == 12


def test_producing_fails_before_anything_is_sent_or_says_what_was(cli: Cli, topic_name: str, tmp_path: Path) -> None:
    failed(
        cli("produce", topic_name, "-m", "x"),
        4,
        f"error: topic not found: {topic_name!r} (40401)\n       --create makes",
    )
    good(cli("produce", topic_name, "-m", "first", "--create"))
    lines = tmp_path / "lines"
    lines.write_text("a:1\nb:2\nthree\n")
    bad = cli("produce", topic_name, str(lines), "--key-separator", ":")
    failed(bad, 2, f"error: {lines}: line 3: has no key separator ':'; nothing was sent\n")
    long = cli("produce", topic_name, given=b"x" * (1 << 20) + b"y\n")
    failed(long, 2, "error: line 1: message has 1048577 bytes, the limit is 1048576; 0 of 0 messages sent")
    failed(cli("produce", topic_name, "--rate", "0.00000000001"), 2, "error: --rate: a rate must be from 0.001 to 1,0")
    failed(cli("produce", topic_name, "-m", "x", "--timeout", "1e10"), 2, "error: --timeout: must be a number of sec")
    failed(cli("produce", topic_name, str(tmp_path / "none")), 2, f"error: {tmp_path / 'none'}: No such file")
    failed(cli("produce", topic_name, "-m", "x", "-p", "9"), 4, "error: partition 9 not found; ")
    failed(cli("produce", topic_name, "-m", "x", "-H", "a"), 2, "error: --header: 'a' must be NAME=VALUE")
    failed(cli("produce", topic_name, "-m", "x", "--rate", "0"), 2, "error: --rate: '0' is no rate")
    failed(cli("produce", topic_name, "-k", "a", "-K", ":"), 2, "error: --key: not together with --key-separator")
    failed(cli("produce", topic_name, "-K", ""), 2, "error: --key-separator: must not be empty")
    failed(cli("produce", topic_name, "x", "-m", "y"), 2, "error: --message: not together with a file")
    assert good(cli("consume", topic_name, "-e")) == "first\n"

    half = cli("produce", topic_name, "-K", ":", given=lines.read_bytes())
    failed(half, 1, f"error: line 3: has no key separator ':'; 2 of 2 messages sent to {topic_name} were acknowledged")
    half = cli("produce", topic_name, "-K", ":", "-o", "json", given=lines.read_bytes())
    answered = json.loads(half.stderr)
    assert (half.exit_code, answered["exit_code"], answered["sent"], answered["acknowledged"]) == (1, 1, 2, 2)
    assert sorted(good(cli("consume", topic_name, "-e")).split()) == ["1", "1", "2", "2", "first"]


def test_a_topic_is_created_only_when_all_else_is_right(cli: Cli, topic_name: str, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text("no key\n")
    for words, code, message in (
        ((str(tmp_path / "none"),), 2, "No such file"),
        ((str(tmp_path),), 2, "Is a directory"),
        ((str(lines), "-K", ":"), 2, "line 1: has no key separator ':'; nothing was sent"),
        (("-m", "a:b", "-m", "c", "-K", ":"), 2, "error: --message: text 2: has no key separator ':'; nothing was"),
        (("-m", "x", "-p", "99"), 4, f"error: partition 99 not found; {topic_name} has 4"),
        (("-m", "x", "-H", "h" * 300 + "=v"), 2, "error: --header: a name may have at most "),
        (("-m", "x", "-k", "k" * 70_000), 2, "error: --key: has 70000 bytes, the limit is 65536"),
    ):
        failed(cli("produce", topic_name, *words, "--create"), code, message)
        failed(cli("topic", "describe", topic_name), 4, "error: topic not found")
    good(cli("produce", topic_name, "-m", "two\nlines\n", "-p", "3", "--create"))
    (message,) = objects(cli("consume", topic_name, "-e", "-o", "json"))
    assert (message["partition"], message["value"]) == (3, "two\nlines\n")


def test_a_rate_is_kept(cli: Cli, topic_name: str) -> None:
    started = time.monotonic()
    good(cli("produce", topic_name, "--create", "--rate", "20/s", given="x\n" * 11))
    assert time.monotonic() - started >= 0.4  # ten gaps of 50 ms, less what may be made up for


def test_what_cannot_be_consumed_is_said(cli: Cli, topic_name: str) -> None:
    failed(cli("consume", topic_name), 4, f"error: topic not found: {topic_name!r} (40401)")
    failed(cli("consume", topic_name, "--name", "x"), 4, f"error: topic not found: {topic_name!r} (40401)")
    good(cli("topic", "create", topic_name, "-p", "2"))
    failed(cli("consume", topic_name, "-p", "2"), 4, f"error: partition 2 not found; {topic_name} has 2 (40402)")
    failed(cli("consume", topic_name, "--from", "soon"), 2, "error: --from: 'soon' is none of: earliest, latest")
    failed(
        cli("consume", topic_name, "--from", "7"),
        1,
        "error: --from: offset 7 lies past the end; partitions end: 0 at 0",
    )
    failed(cli("consume", topic_name, "--format", "%z"), 2, "error: --format: %z is not known; there are %s (value)")
    failed(cli("consume", topic_name, "--format", "%s", "-o", "json"), 2, "--format: not together with -o json")
    failed(cli("consume", topic_name, "--name", ""), 2, "error: --name: must not be empty")
    assert document(cli("consumer", "list", topic_name, "-o", "json")) == []
    failed(cli("consume", topic_name, "--name", "x", "--from", "-5"), 2, "error: --from: -N is for reading without")
    failed(cli("consume", topic_name, "--name", "x", "--from", "5"), 2, "with --name, give --partition, too")


# Consumers


def test_a_named_consumer_goes_on_and_can_be_moved(cli: Cli, topic_name: str) -> None:
    good(cli("topic", "create", topic_name, "-p", "2"))
    for partition in ("0", "1"):
        good(cli("produce", topic_name, "-p", partition, given="".join(f"{n}\n" for n in range(5))))
    first = objects(cli("consume", topic_name, "--name", "g", "-n", "3", "-o", "json"))
    assert len(first) == 3
    until(
        lambda: all(document(cli("consumer", "list", topic_name, "-o", "json")) for _ in range(6)),
        within_s=10,
        what="all read managers list it",
    )
    (listed,) = document(cli("consumer", "list", topic_name, "-o", "json"))
    assert (listed["name"], listed["topic"], listed["partition"]) == ("g", topic_name, None)
    assert good(cli("consumer", "list", topic_name)).splitlines()[1].split()[1:] == [topic_name, "g", "all"]
    assert listed in document(cli("consumer", "list", "--name", "g", "-o", "json"))
    assert document(cli("consumer", "list", topic_name, "--name", "nobody", "-o", "json")) == []
    (behind,) = document(cli("consumer", "lag", topic_name, "-o", "json"))
    assert (behind["name"], behind["messages"]) == ("g", 7)

    again = cli("consume", topic_name, "--group", "g", "-e", "-o", "json", "--from", "latest")
    rest = objects(again)
    assert "warning: --from is for new names; 'g' goes on where it was" in again.stderr
    places = {(message["partition"], message["offset"]) for message in first + rest}
    assert places == {(partition, offset) for partition in (0, 1) for offset in range(5)}
    assert len(first + rest) == 10
    lag = document(cli("consumer", "lag", topic_name, "g", "-o", "json"))
    assert [(p["partition"], p["cursor"], p["messages"]) for p in lag["partition_list"]] == [(0, 5, 0), (1, 5, 0)]

    dry = cli("consumer", "seek", topic_name, "g", "--to", "earliest", "--dry-run")
    assert [line.split() for line in good(dry).splitlines()] == [
        ["PARTITION", "FROM", "TO", "CHANGE"],
        ["0", "5", "0", "-5"],
        ["1", "5", "0", "-5"],
    ]
    assert "nothing was changed (--dry-run)" in dry.stderr
    assert good(cli("consume", topic_name, "--name", "g", "-e")) == ""

    def moved(*words: str) -> list[tuple[int, int, int]]:
        answer = document(cli("consumer", "seek", topic_name, str(listed["consumer_id"]), "--to", *words, "-o", "json"))
        return [(move["partition"], move["from"], move["to"]) for move in answer["partition_list"]]

    assert moved("earliest", "--dry-run") == moved("earliest") == [(0, 5, 0), (1, 5, 0)]
    assert moved("-2") == [(0, 0, 3), (1, 0, 3)]
    assert moved("1", "-p", "1") == [(1, 3, 1)]
    assert moved("2999-01-01", "--dry-run") == moved("2999-01-01") == [(0, 3, 5), (1, 1, 5)]
    assert moved("-1h") == [(0, 5, 0), (1, 5, 0)]
    assert moved("latest") == [(0, 0, 5), (1, 0, 5)]

    seek = ("consumer", "seek", topic_name)
    failed(
        cli(*seek, "h", "--to", "latest"),
        4,
        f"error: {topic_name} has no consumer 'h' (40403)\nhint: 'myqueue consumer",
    )
    failed(cli("consumer", "lag", topic_name, "h"), 4, f"error: {topic_name} has no consumer 'h' (40403)")
    failed(cli(*seek, "g", "--to", "3"), 2, "error: --to: an offset belongs to a partition; give --partition, too")
    failed(cli(*seek, "g", "--to", "9", "-p", "0"), 1, "error: partition 0 ends at 5 (42201)")
    failed(cli(*seek, "g", "--to", "0", "-p", "2"), 4, "error: g reads no partition 2 (40402)")
    failed(cli(*seek, "g", "--to", "never"), 2, "error: --to: 'never' is none of")
    failed(cli(*seek, "g"), 2, "--to")
    taken = cli("consume", topic_name, "--name", "g", "-p", "1", "-e")
    failed(taken, 1, "(40902)")
    delete = ("consumer", "delete", topic_name, "g")
    failed(cli(*delete), 2, "error: --yes: needed where nobody can be asked")
    assert good(cli(*delete, "--yes")) == f"consumer g of {topic_name} is deleted\n"
    until(
        lambda: all(document(cli("consumer", "list", topic_name, "-o", "json")) == [] for _ in range(6)),
        within_s=10,
        what="no read manager lists it",
    )
    failed(cli(*delete, "-y"), 4, f"error: {topic_name} has no consumer 'g' (40403)")


def test_lists_of_what_is_not_there(cli: Cli, topic_name: str) -> None:
    for words in (("consumer", "list", topic_name), ("consumer", "lag", topic_name)):
        failed(cli(*words), 4, f"error: topic not found: {topic_name!r} (40401)")
    good(cli("topic", "create", topic_name))
    for words in (("consumer", "list", topic_name), ("consumer", "lag", topic_name)):
        empty = cli(*words)
        assert (good(empty), empty.stderr) == ("", f"no consumers of {topic_name}\n")


# The cluster that is meant, and wrong usage


@pytest.mark.parametrize(
    "words",
    [
        ("topic", "list"),
        ("topic", "create", "t"),
        ("topic", "describe", "t"),
        ("topic", "delete", "t", "--yes"),
        ("produce", "t", "-m", "x"),
        ("consume", "t"),
        ("tail", "t"),
        ("consume", "t", "--name", "n"),
        ("consumer", "list"),
        ("consumer", "lag", "t"),
        ("consumer", "seek", "t", "n", "--to", "latest"),
        ("consumer", "delete", "t", "n", "--yes"),
    ],
)
def test_a_server_that_is_away_is_told_at_once(cli: Cli, words: tuple[str, ...]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        away = f"http://127.0.0.1:{taken.getsockname()[1]}"
        result = cli(*words, "--url", away)
        failed(result, 3, f"error: cannot connect to {away} (from --url): connection refused")
        assert "hint: is the cluster running there?" in result.stderr
        answered = json.loads(cli(*words, "--url", away, "-o", "json").stderr)
    assert (answered["exit_code"], answered["error_code"], answered["retriable"]) == (3, 50301, True)


def test_a_profile_names_the_cluster(cli: Cli, url: str, tmp_path: Path) -> None:
    config = tmp_path / "myqueue" / "config.toml"
    config.parent.mkdir()
    config.write_text(f'[profiles.good]\nurl = "{url}"\noutput = "json"\n[profiles.gone]\nurl = "127.0.0.1:1"\n')
    assert isinstance(document(cli("topic", "list", "--profile", "good")), list)
    failed(cli("topic", "list", "--profile", "gone"), 3, "cannot connect to http://127.0.0.1:1 (from profile 'gone')")
    failed(cli("topic", "list", "--profile", "none"), 2, "error: no profile 'none' in ")
    both = cli("consume", "t", "--profile", "good", "--format", "%s")
    answered = json.loads(both.stderr)
    assert answered["message"] == "--format: not together with the JSON that profile 'good' asks for"
    assert json.loads(cli("topic", "crate", "--profile", "good").stderr)["exit_code"] == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("topic", "list", "--nope"), "error: No such option: --nope\nhint: 'myqueue topic list --help' shows how"),
        (("topic", "crate"), "No such command 'crate'. Did you mean 'create', 'alter'?"),
        (("topic", "list", "-o", "xml"), "'xml' is not one of 'table', 'json'"),
        (("topic", "describe"), "Missing argument 'NAME'"),
        (("consume", "t", "-n", "0"), "'--count'"),
        (("topic", "list", "--url", "ftp://x"), "error: --url: 'ftp://x': the address must start with http"),
        (("topic", "list", "--url", "http://a..b"), "error: --url: 'http://a..b': the host is no name"),
        (("consume", ""), "Invalid value for 'TOPIC': topic name must be 1 to 200 characters"),
        (("produce", "a/b", "-m", "x"), "Invalid value for 'TOPIC': topic name must be 1 to 200 characters"),
        (("topic", "list", "--timeout", "-1"), "error: --timeout: must be a number of seconds above 0"),
    ],
)
def test_wrong_usage_is_named_and_costs_nothing(cli: Cli, words: tuple[str, ...], message: str) -> None:
    failed(cli(*words), 2, message)
    answered = json.loads(cli("-o", "json", *words).stderr)
    assert (answered["status"], answered["exit_code"]) == ("failure", 2)


def test_what_is_asked_about_the_command_itself(cli: Cli, url: str) -> None:
    assert good(cli("--version")).startswith("myqueue ")
    for words in ((), ("topic",), ("consumer",)):
        alone = cli(*words)
        assert alone.exit_code == 2
        assert alone.stdout == good(cli(*words, "--help"))
    with Admin(url) as admin:
        cluster = admin.cluster()
    assert {broker.state for broker in cluster.brokers} == {"active"}
    assert cluster.write_manager is not None
