"""The demo: generators and filters as real processes, a broker that is killed, and the proof that no invoice was lost
or doubled."""

import argparse
import os
import signal
import sys

from examples.invoices.figures import Figures
from examples.invoices.live_view import LiveView
from examples.invoices.outage import local_brokers
from examples.invoices.pipeline import PipelineFailed, Plan, new_run_id, run_pipeline
from examples.invoices.report import print_next_steps, print_outcome, print_start
from examples.progress import new_console
from myqueue import Admin, MyQueueError


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("must be a number from 1")
    return int(text)


def _parse(arguments: list[str] | None) -> tuple[Plan, bool]:
    """And whether a broker is to be killed."""
    parser = argparse.ArgumentParser(prog="python -m examples.invoices", description=__doc__)
    parser.add_argument(
        "--url", default=os.environ.get("MYQUEUE_URL", "http://127.0.0.1:8080"), help="default %(default)s"
    )
    parser.add_argument("--generators", type=_positive, default=3, help="processes (default 3)")
    parser.add_argument("--filters", type=_positive, default=4, help="processes (default 4)")
    parser.add_argument("--invoices", type=_positive, default=60_000, help="in all (default 60000)")
    parser.add_argument(
        "--rate", type=_positive, default=5000, help="invoices a second that are generated (default 5000)"
    )
    parser.add_argument("--no-kill", action="store_true", help="kill no broker in the middle of it")
    parser.add_argument("--seed", type=int, default=1, help="default 1")
    parser.add_argument("--timeout", type=float, default=180.0, metavar="S", help="give up after S seconds")
    given = parser.parse_args(arguments)
    plan = Plan(
        url=given.url.rstrip("/"),
        generators=given.generators,
        filters=given.filters,
        invoices=given.invoices,
        rate=given.rate,
        seed=given.seed,
        timeout_s=given.timeout,
        run=new_run_id(),
    )
    return plan, not given.no_kill


def main(arguments: list[str] | None = None) -> int:
    plan, kill = _parse(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds the blocks that stop the workers
    console = new_console()
    try:
        with Admin(plan.url) as admin:
            readiness = admin.ready()
        if not readiness.ready:
            problems = [f"{name}: {state}" for name, state in readiness.checks.items() if state != "ok"]
            console.print(f"{plan.url} is not ready: {'; '.join(problems)}", style="red", markup=False)
            return 1
        brokers = local_brokers(plan.url) if kill else None
        print_start(console, plan)
        if kill and brokers is None:
            console.print("  No broker is killed: this is not the running stack of this checkout.\n", style="dim")
        figures = Figures([name for name, _ in plan.names()], plan.filter_names())
        with LiveView(console, plan, figures) as view:
            outcome = run_pipeline(plan, figures, brokers, view.update)
    except (MyQueueError, PipelineFailed, ValueError) as error:
        console.print(f"{plan.url}: {error}", style="red", markup=False)
        return 1
    except KeyboardInterrupt:
        console.print("stopped")
        return 130
    print_outcome(console, plan, outcome)
    if not outcome.audit.adds_up:
        return 1
    print_next_steps(console, plan)
    return 0


if __name__ == "__main__":
    sys.exit(main())
