"""Which cluster a command speaks to, and how it prints."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from myqueue.cli.output import Cell, Output, Styled, bytes_text, duration_text, plain_table, plural
from myqueue.cli.settings import BadSettings, Flags, resolve

CONFIG = """
default = "home"
[profiles.home]
url = "home.example"
[profiles.work]
url = "https://work.example/queue/"
timeout = 3
output = "json"
[profiles.half]
timeout = 4.5
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    file = tmp_path / "myqueue" / "config.toml"
    file.parent.mkdir()
    file.write_text(CONFIG)
    return {"XDG_CONFIG_HOME": str(tmp_path)}


def test_the_nearest_word_about_the_cluster_counts(environment: dict[str, str]) -> None:
    def url(flags: Flags, **more: str) -> str:
        return resolve(flags, environment | more).url

    assert resolve(Flags(), {"HOME": "/nowhere"}).url == "http://localhost"
    assert url(Flags()) == "http://home.example"
    assert url(Flags(), MYQUEUE_PROFILE="work") == "https://work.example/queue"
    assert url(Flags(), MYQUEUE_PROFILE="work", MYQUEUE_URL="env:81") == "http://env:81"
    assert url(Flags(profile="work"), MYQUEUE_URL="env:81", MYQUEUE_PROFILE="half") == "https://work.example/queue"
    assert url(Flags(profile="half"), MYQUEUE_URL="env:81") == "http://env:81"
    assert url(Flags(url="flag", profile="work"), MYQUEUE_URL="env:81") == "http://flag"


def test_the_rest_of_a_profile_counts_unless_a_flag_says_otherwise(environment: dict[str, str]) -> None:
    work = resolve(Flags(profile="work"), environment)
    assert (work.timeout_s, work.output, work.color) == (3, "json", True)
    flags = resolve(Flags(profile="work", timeout=1, output="table", no_color=True), environment)
    assert (flags.timeout_s, flags.output, flags.color) == (1, "table", False)
    assert not resolve(Flags(), environment | {"NO_COLOR": "1"}).color
    assert Flags(url="a").over(Flags(url="b", timeout=2)) == Flags(url="a", timeout=2)


@pytest.mark.parametrize(
    ("flags", "variables", "problem"),
    [
        (Flags(url="ftp://x"), {}, "--url: 'ftp://x': the address must start with http"),
        (Flags(), {"MYQUEUE_URL": "a b"}, "MYQUEUE_URL: 'a b': the address names no host"),
        (Flags(profile="nope"), {}, "no profile 'nope' in .*config.toml; there is: half, home, work"),
        (Flags(timeout=0), {}, "--timeout: must be a number of seconds above 0"),
        (Flags(timeout=float("nan")), {}, "--timeout: must be"),
        (Flags(timeout=1e10), {}, "--timeout: must be a number of seconds above 0, and at most 86400, not 1e[+]10"),
        (Flags(url=f"http://{'a' * 70}.b"), {}, "--url: .* the host is no name that can be looked up"),
    ],
)
def test_what_cannot_be_meant_is_named(
    environment: dict[str, str], flags: Flags, variables: dict[str, str], problem: str
) -> None:
    with pytest.raises(BadSettings, match=problem):
        resolve(flags, environment | variables)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ("default = ", "config.toml: Invalid value"),
        ("url = 'x'", "config.toml: 'url' is not known"),
        ("profiles = 3", "profiles must be tables"),
        ("default = 'x'\n[profiles]\nx = 1", r"profile 'x' must be a table: \[profiles.x\]"),
        ("default = 'x'\n[profiles.x]\nuri = 'y'", "profile 'x': 'uri' is not known"),
        ("default = 'x'\n[profiles.x]\nurl = 5", "profile 'x': url must be a string"),
        ("default = 'x'\n[profiles.x]\ntimeout = 'y'", "profile 'x': timeout must be a number"),
        ("default = 'x'\n[profiles.x]\ntimeout = 0", "profile 'x': timeout must be a number of seconds above 0"),
        ("default = 'x'\n[profiles.x]\noutput = 'y'", "profile 'x': output must be"),
    ],
)
def test_a_broken_file_is_named_with_what_is_wrong(environment: dict[str, str], config: str, problem: str) -> None:
    (Path(environment["XDG_CONFIG_HOME"]) / "myqueue" / "config.toml").write_text(config)
    with pytest.raises(BadSettings, match=problem):
        resolve(Flags(), environment)


def test_a_home_that_cannot_be_used_matters_only_to_who_names_a_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_home(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    file = tmp_path / "file"
    file.touch()
    for environment in ({"HOME": "/dev/null"}, {"HOME": str(file)}, {"XDG_CONFIG_HOME": str(file)}):
        assert resolve(Flags(url="x"), environment).url == "http://x"
        with pytest.raises(BadSettings, match=r"no profile 'p': .*config.toml: Not a directory"):
            resolve(Flags(profile="p"), environment)
    monkeypatch.setattr(Path, "expanduser", no_home)  # as where the user has no entry in the system's list
    assert resolve(Flags(), {}).url == "http://localhost"
    with pytest.raises(BadSettings, match="there is no home folder; set HOME or XDG_CONFIG_HOME"):
        resolve(Flags(profile="p"), {})


def test_control_characters_are_shown_and_not_sent_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output()
    evil = "a\x1b[2J\x9b5m\x7f\x07"
    output.table(["name"], [[evil], [Styled(f"{evil}\n\tx", "red")]])
    output.note(f"{evil}\n\tx")
    output.text(Styled(evil, "red"))
    output.document({"name": evil})
    output.failure({"name": evil})
    seen = capsys.readouterr()
    assert not set(evil[1:]) & set(seen.out + seen.err) & set("\x1b\x9b\x7f\x07")
    assert seen.out.splitlines()[1:3] == ["a\\x1b[2J\\x9b5m\\x7f\\x07", "a\\x1b[2J\\x9b5m\\x7f\\x07\\x0a\\x09x"]
    assert json.loads(seen.out.splitlines()[-1]) == json.loads(seen.err.splitlines()[-1]) == {"name": evil}


def test_help_is_written_in_any_encoding() -> None:
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    for words, code in ((["consume", "--help"], 0), (["topic"], 2)):
        ended = subprocess.run([sys.executable, "-m", "myqueue.cli", *words], capture_output=True, env=environment)
        assert (ended.returncode, ended.stderr) == (code, b"")


def test_a_plain_table_is_aligned_and_has_no_blanks_at_the_end() -> None:
    rows: list[list[Cell]] = [["a", 1, None], ["longer", 1000, Styled("ok", "green")]]
    assert plain_table(["name", "lag", "state"], rows, [False, True, False]) == [
        "NAME     LAG  STATE",
        "a          1  -",
        "longer  1000  ok",
    ]


def test_numbers_for_people() -> None:
    sizes = {0: "0 B", 1023: "1023 B", 1536: "1.5 KiB", 5 << 30: "5.0 GiB", 3 << 50: "3072.0 TiB"}
    assert {size: bytes_text(size) for size in sizes} == sizes
    durations = {0.42: "0.4s", 12: "12s", 185: "3m5s", 7380: "2h3m", 180_000: "2d2h", 86_400: "1d"}
    assert {seconds: duration_text(seconds) for seconds in durations} == durations
    assert (plural(1, "message"), plural(1234, "copy", "copies")) == ("1 message", "1,234 copies")


def test_without_its_packages_the_command_says_what_to_install_and_help_loads_no_arrow() -> None:
    missing = "import sys; sys.modules['typer'] = None; from myqueue.cli.__main__ import main; main()"
    ended = subprocess.run([sys.executable, "-c", missing], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "error: the command needs typer and rich: pip install 'myqueue[cli]'\n"
    light = "import sys, myqueue.cli.app; assert not {'pyarrow', 'rich.console'} & sys.modules.keys(), 'not light'"
    subprocess.run([sys.executable, "-c", light], check=True)
