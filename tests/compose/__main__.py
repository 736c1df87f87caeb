"""`python -m tests.compose`: builds the images, runs the whole stack in containers, tests it and takes it down.

0 all is well or nothing could be run here (SKIPPED says why; MYQUEUE_TESTS_REQUIRED=1 makes that a failure),
1 something failed, 2 wrong usage, 130 interrupted. Everything is taken down again, whatever happens.
"""

import argparse
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

import requests

from tests import required
from tests.compose import failover, spark_stages, stages
from tests.compose.deployment import PROJECT, USUAL_PORT, Deployment, copy_checkout, free_port, is_free
from tests.compose.engine import Engine, find_compose, found_engine
from tests.compose.failure import CannotRun, StageFailed
from tests.compose.stand_ins import PREFIX, provide
from tests.compose.transcript import Transcript, reason_of

OK, FAILED, INTERRUPTED = 0, 1, 130
LIMIT_MINUTES = 20  # of a machine with other work; a quiet one should need about 12


def parse(argv: list[str] | None) -> argparse.Namespace:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "myqueue"
    parser = argparse.ArgumentParser(prog="python -m tests.compose", description=__doc__)
    parser.add_argument(
        "--port", type=int, default=None, help="published port (default: MYQUEUE_PORT, 80, or a free one)"
    )
    parser.add_argument("--compose", help="the compose command, such as docker-compose (default: whichever is there)")
    parser.add_argument("--skip-spark", action="store_true", help="leave out the Spark profile, whose image is large")
    parser.add_argument("--skip-system-tests", action="store_true", help="leave out tests/system")
    parser.add_argument("--skip-failover", action="store_true", help="leave out the faults of PostgreSQL and etcd")
    parser.add_argument("--only-images", action="store_true", help="provide the base images and end")
    parser.add_argument("--cache", type=Path, default=cache, help=f"transcript, logs, engine (default: {cache})")
    return parser.parse_args(argv)


def choose_port(wanted: int | None, script: Transcript) -> int:
    port = wanted or int(os.environ.get("MYQUEUE_PORT") or USUAL_PORT)
    if is_free(port):
        return port
    other = free_port()
    script.say(f"port {port} is taken on this machine: using {other} instead")
    return other


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Two runs would take each other's containers away."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StageFailed(f"another run is under way (it holds {folder / 'lock'})") from None
        yield


def test(engine: Engine, arguments: argparse.Namespace, scratch: Path, script: Transcript, results: Path) -> None:
    compose, version = find_compose(engine, arguments.compose)
    script.say(f"Docker Compose {version} (`{' '.join(Path(word).name for word in compose)}`)")
    with script.step("base images") as found:
        images = provide(engine, lambda text: script.say(f"  {text}"))
        if any(name.startswith(PREFIX) for name in images.values()):
            found.append("STAND-INS are used: this run tests our own files, not the official images")
    if arguments.only_images:
        return
    checkout = scratch / "checkout"
    checkout.mkdir()
    copy_checkout(checkout)
    deployment = Deployment(engine, compose, images, checkout, choose_port(arguments.port, script))
    deployment.make_secrets()
    try:
        deployment.down()  # what a run that was cut off may have left
        stack(deployment, arguments, script, results)
    except BaseException:
        deployment.tell_unwell(script.say)
        save_logs(deployment, results)
        raise
    finally:
        with script.step("take everything down, with its volumes") as found:
            deployment.down()
            left = [*(one.name for one in deployment.containers()), *deployment.volumes()]
            if left:
                raise StageFailed(f"left behind: {', '.join(left)}")
            found.append("no container and no volume of the project is left")


def stack(deployment: Deployment, arguments: argparse.Namespace, script: Transcript, results: Path) -> None:
    with script.step("build the images"):
        deployment.build("write-manager-1", "postgres-1")
    with script.step("up, until every container is healthy", deployment.progress) as found:
        deployment.choose(env_file="config/.env.persist")
        deployment.up()
        containers = deployment.await_well(within_s=stages.UP_S)
        stages.await_port(deployment.url, within_s=60)
        found.append(f"{len(containers)} containers healthy, {deployment.url} answers")
    if not arguments.skip_system_tests:
        stages.system_tests(deployment, script, results / "system-tests.txt", stages.SYSTEM_TESTS)
    stages.scaling(deployment, script)
    stages.kills(deployment, script, results / "history.jsonl")
    if not arguments.skip_failover:
        failover.failover(deployment, script)
    with ExitStack() as ending:
        # From here on the stack is mostly waited for: time to build what is large.
        image = None if arguments.skip_spark else ending.enter_context(deployment.building("spark", results / "spark"))
        stages.survival(deployment, script, results / "history.jsonl")
        stages.in_memory(deployment, script, results / "system-tests-in-memory.txt")
        if image is None:
            script.say("Spark: left out (--skip-spark)")
        else:
            spark_stages.spark(deployment, script, image)


def save_logs(deployment: Deployment, results: Path) -> None:
    for one, log in deployment.logs():
        (results / f"{one.name}.log").write_text(log)


def refuse_more_time(_signal: int, _frame: FrameType | None) -> None:
    raise StageFailed(f"not done within {LIMIT_MINUTES} minutes")


def interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def judge(arguments: argparse.Namespace, script: Transcript, results: Path) -> int:
    scratch = Path(tempfile.mkdtemp(prefix=f"{PROJECT}-"))
    try:
        with alone(arguments.cache), found_engine(scratch, arguments.cache / "engine", script.say) as engine:
            test(engine, arguments, scratch, script, results)
    except CannotRun as reason:
        script.say(f"SKIPPED: {reason}")
        if required.are_required():
            script.say(f"FAILED: {required.VARIABLE}=1 allows no skip")
            return FAILED
        return OK
    except KeyboardInterrupt:
        script.say("INTERRUPTED")
        return INTERRUPTED
    except (StageFailed, AssertionError, requests.RequestException, subprocess.SubprocessError) as failure:
        script.say(f"FAILED: {reason_of(failure)}; logs and histories are in {results}")
        return FAILED
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    script.say("the base images are there; nothing was tested" if arguments.only_images else "PASSED")
    return OK


def main(argv: list[str] | None = None) -> int:
    arguments = parse(argv)
    results: Path = arguments.cache / "compose-test"
    shutil.rmtree(results, ignore_errors=True)
    results.mkdir(parents=True)
    script = Transcript(results / "transcript.txt")
    try:
        return judge(arguments, script, results)
    finally:
        script.say(f"this transcript is in {script.path}")
        script.close()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, interrupt)
    signal.signal(signal.SIGALRM, refuse_more_time)
    signal.alarm(LIMIT_MINUTES * 60)
    code = main()
    sys.stdout.flush()
    # Clients of a stack that never answered again may still be waiting for it.
    os._exit(code)
