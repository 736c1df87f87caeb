"""Settings: the environment's names, wrong values all at once, and which Java."""

import os
import subprocess
from pathlib import Path

import pytest

from spark import runtime
from spark.__main__ import main
from spark.config import CHECKOUT, JOB_NAMES, WRONG_USAGE, SparkFailure, load, variable_of
from spark.jobs import JOBS
from spark.runtime import Java, write_program


def test_every_job_has_a_schedule() -> None:
    assert set(JOBS) == set(JOB_NAMES)
    assert not any(load().schedule_of(job).is_off for job in JOB_NAMES)


def test_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in {
        "MYQUEUE_URL": "host:8080",
        "SPARK_MASTER": "spark://host:7077",
        "MYQUEUE_JAVA": "packaged",
        "MYQUEUE_SPARK_DIR": str(tmp_path),
        "MYQUEUE_SPARK_CONSUMER_LAG": "cron:0 * * * *",
    }.items():
        monkeypatch.setenv(name, value)
    settings = load()
    assert (settings.url, settings.master) == ("http://host:8080", "spark://host:7077")
    assert (settings.java, settings.dir) == ("packaged", tmp_path)
    assert settings.schedule_of("consumer_lag").text == "cron:0 * * * *"
    assert variable_of("url") == "MYQUEUE_URL"


def test_checkpoints_are_in_the_home_of_the_stack(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MYQUEUE_SPARK_DIR", raising=False)
    monkeypatch.delenv("MYQUEUE_HOME", raising=False)
    assert load().dir == CHECKOUT / ".myqueue" / "spark"
    monkeypatch.setenv("MYQUEUE_HOME", str(tmp_path))
    assert load().dir == tmp_path / "spark"


def test_wrong_values_are_all_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = {
        "MYQUEUE_URL": "ftp://host",
        "MYQUEUE_JAVA": "mine",
        "MYQUEUE_SPARK_TOPIC_ROLLUP": "hourly",
        "MYQUEUE_SPARK_DRIVER_MEMORY": "much",
    }
    for name, value in wrong.items():
        monkeypatch.setenv(name, value)
    assert main(["schedule"]) == WRONG_USAGE
    said = capsys.readouterr().err
    assert all(name in said for name in wrong)
    assert "interval:60s" in said


@pytest.mark.parametrize(
    "argv", [[], ["run"], ["run", "nothing"], ["run", "consumer_lag", "--audit"], ["scheduler", "now"]]
)
def test_wrong_usage(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(argv)
    assert exit_.value.code == WRONG_USAGE


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_402"', 8),
        ('x version "25" y', 25),
        ("", None),
    ],
)
def test_java_versions(said: str, version: int | None) -> None:
    assert runtime.version_in(said) == version


def test_a_java_that_cannot_run_spark_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    old.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkFailure, match=r"MYQUEUE_JAVA=machine.*is Java 11; Spark needs 17") as failure:
        runtime.find_java("machine")
    assert failure.value.exit_code == WRONG_USAGE
    assert runtime.find_java("auto") == runtime.find_java("packaged")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    with pytest.raises(SparkFailure, match="does not run"):
        runtime.find_java("machine")


def test_workers_import_what_is_installed(tmp_path: Path) -> None:
    shown = write_program(tmp_path / "it's python", '#!/bin/sh\nprintf "%s|" "$PYTHONPATH" "$@"\n')
    program = write_program(tmp_path / "python", runtime.python_wrapper(str(shown)))
    for given, kept in (("/a/pyspark.zip:/a/py4j-0.1-src.zip:/b c:/*", "/b c:/*"), ("/a/pyspark.zip", ""), ("", "")):
        command = [str(program), "-m", "x y"]
        said = subprocess.run(command, capture_output=True, text=True, check=True, env={"PYTHONPATH": given})
        paths = f"{kept}:{CHECKOUT}" if kept else str(CHECKOUT)
        assert said.stdout == f"{paths}|-m|x y|"


def test_java_is_started_without_the_options_it_does_not_know(tmp_path: Path) -> None:
    program = tmp_path / "it's java"
    program.write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    program.chmod(0o755)
    script = tmp_path / "script"
    actions = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
    for version, kept in ((17, f"{actions}|"), (25, "")):
        script.write_text(runtime.java_wrapper(Java(program, version)))
        script.chmod(0o755)
        given = [str(script), "-Xmx1g", "--add-modules=jdk.incubator.vector", actions, "a b", "*", "$x"]
        said = subprocess.run(given, capture_output=True, text=True, check=True, env=os.environ)
        assert said.stdout == f"-Xmx1g|{kept}a b|*|$x|"
