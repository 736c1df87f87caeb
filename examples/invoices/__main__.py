"""The demo: generators and filters as real processes, then the proof that no invoice was lost or doubled."""

import argparse
import os
import signal
import sys

from examples.invoices.pipeline import PipelineFailed, Plan, new_run_id, run_pipeline
from examples.invoices.report import InvoiceProgress, print_next_steps, print_outcome, print_start
from examples.progress import new_console
from myqueue import Admin, MyQueueError


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("must be a number from 1")
    return int(text)


def _parse(arguments: list[str] | None) -> Plan:
    parser = argparse.ArgumentParser(prog="python -m examples.invoices", description=__doc__)
    parser.add_argument(
        "--url", default=os.environ.get("MYQUEUE_URL", "http://127.0.0.1:8080"), help="default %(default)s"
    )
    parser.add_argument("--generators", type=_positive, default=3, help="processes (default 3)")
    parser.add_argument("--filters", type=_positive, default=4, help="processes (default 4)")
    parser.add_argument("--invoices", type=_positive, default=600, help="in all (default 600)")
    parser.add_argument("--seed", type=int, default=1, help="default 1")
    parser.add_argument("--timeout", type=float, default=180.0, metavar="S", help="give up after S seconds")
    given = parser.parse_args(arguments)
    return Plan(
        url=given.url.rstrip("/"),
        generators=given.generators,
        filters=given.filters,
        invoices=given.invoices,
        seed=given.seed,
        timeout_s=given.timeout,
        run=new_run_id(),
    )


def main(arguments: list[str] | None = None) -> int:
    plan = _parse(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds the blocks that stop the workers
    console = new_console()
    try:
        with Admin(plan.url) as admin:
            readiness = admin.ready()
        if not readiness.ready:
            problems = [f"{name}: {state}" for name, state in readiness.checks.items() if state != "ok"]
            console.print(f"{plan.url} is not ready: {'; '.join(problems)}", style="red", markup=False)
            return 1
        print_start(console, plan)
        progress = InvoiceProgress(console, plan.invoices)
        with progress.bars:
            outcome = run_pipeline(plan, progress.show, progress.add_read_back)
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
