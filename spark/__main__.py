"""`python -m spark`: 0 done, 1 failed or an audit found differences, 2 wrong usage, 4 the job is running elsewhere."""

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

from myqueue.protocol.errors import MyQueueError, Unavailable
from spark.config import DONE, FAILED, JOB_NAMES, WRONG_USAGE, SparkFailure, load, reading_url
from spark.report import seconds_of, write_report

FILE_WIDTH = 160


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m spark", description="Jobs that compute sizes, rates and lag.", epilog=__doc__
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    one = verbs.add_parser("run", help="run one job now", epilog="MYQUEUE_URL says where the cluster is.")
    one.add_argument("job", choices=JOB_NAMES)
    one.add_argument(
        "--audit",
        action="store_true",
        help="of partition_metrics: read everything that is stored and compare it with the brokers and the figures",
    )
    page = verbs.add_parser("report", help="write one HTML page with plots of sizes, rates, lag and skew")
    page.add_argument("--last", default="24h", type=seconds_of, metavar="DURATION", help="90m, 24h (default), 7d, 2w")
    page.add_argument("--output", default="myqueue-report.html", type=Path, metavar="FILE", help="default: %(default)s")
    verbs.add_parser("schedule", help="schedules, next and last runs")
    verbs.add_parser("scheduler", help="run the jobs when they are due, until SIGTERM")
    _add_cluster(verbs)
    arguments = parser.parse_args(argv)
    if arguments.verb == "run" and arguments.audit and arguments.job != "partition_metrics":
        one.error(f"--audit is for partition_metrics, not for {arguments.job}")
    return arguments


def _add_cluster(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """A Spark cluster from the same package; its pages get any free port unless one is given."""
    master = verbs.add_parser("master", help="run the master of a Spark cluster, until SIGTERM")
    worker = verbs.add_parser("worker", help="run a worker of a Spark cluster, until SIGTERM")
    for one in (master, worker):
        one.add_argument("--host", help="address to listen on (default: the name of this host)")
        one.add_argument("--page-port", type=int, default=0, help="port of Spark's pages (default: any)")
    master.add_argument("--port", type=int, default=7077, help="port for workers and drivers (default: 7077)")
    worker.add_argument("master", help="address of the master, as spark://host:7077")
    worker.add_argument("--cores", type=int, default=1, help="tasks at a time (default: 1)")
    worker.add_argument("--memory", default="1g", help="of all executors together (default: 1g)")


def act(arguments: argparse.Namespace) -> int:
    if arguments.verb == "report":  # needs no Spark: the figures are there
        print(write_report(reading_url(load()), arguments.last, arguments.output))
        return DONE
    if find_spec("pyspark") is None:
        raise SparkFailure("Spark is not installed; `make spark` installs and starts it", WRONG_USAGE)
    from spark import commands, standalone  # need pyspark

    settings = load()
    console = Console()
    if not console.is_terminal:
        console = Console(width=FILE_WIDTH)
    match arguments.verb:
        case "run":
            return commands.run(settings, arguments.job, audit=arguments.audit, console=console)
        case "schedule":
            return commands.schedule(settings, console)
        case "master" | "worker":
            host = arguments.host or standalone.default_host()
            if arguments.verb == "master":
                command = standalone.master_command(host, arguments.port, arguments.page_port)
                standalone.run(settings, host, command, arguments.port)
            else:
                command = standalone.worker_command(
                    arguments.master, host, arguments.cores, arguments.memory, arguments.page_port
                )
                standalone.run(settings, host, command)
            return DONE
        case _:
            return commands.scheduler(settings)


def main(argv: list[str] | None = None) -> int:
    arguments = parse(argv)
    try:
        return act(arguments)
    except SparkFailure as failure:
        print(f"spark: {failure}", file=sys.stderr)
        return failure.exit_code
    except Unavailable as error:
        print(f"spark: {error.message} (MYQUEUE_URL says where the cluster is)", file=sys.stderr)
        return FAILED
    except MyQueueError as error:
        print(f"spark: {error.message} ({error.error_code})", file=sys.stderr)
        return FAILED


if __name__ == "__main__":
    sys.exit(main())
