"""Runs one measurement in a fresh process: no thread, garbage or crash of one can touch the next."""

import multiprocessing
import os
import resource
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection

from benchmarks.measurement import Addresses, Figure, Measurement, Pace, Result, Run
from stack.process import die_with_parent

MEMORY_BYTES = 6 << 30

Tick = Callable[[float], None]  # gets the seconds since the measurement began


def expected_s(pace: Pace) -> float:
    return pace.warm_up_s + pace.seconds


def measure(measurement: Measurement, addresses: Addresses, pace: Pace, tick: Tick) -> Result:
    """Never raises: the result has the error of a failed measurement."""
    outcome = _run_apart(measurement, addresses, pace, tick)
    return Result(
        measurement.system,
        measurement.group,
        measurement.method,
        measurement.size,
        figure=outcome if isinstance(outcome, Figure) else None,
        error=outcome if isinstance(outcome, str) else None,
    )


def _run_apart(measurement: Measurement, addresses: Addresses, pace: Pace, tick: Tick) -> Figure | str:
    context = multiprocessing.get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    arguments = (sending, os.getpid(), measurement.run, dict(addresses), pace, measurement.size)
    process = context.Process(target=_work, args=arguments, daemon=True)
    began = time.monotonic()
    process.start()
    sending.close()
    deadline = began + 3 * expected_s(pace) + measurement.spare_s
    try:
        while not receiving.poll(0.25):
            tick(time.monotonic() - began)
            if time.monotonic() > deadline:
                return f"no end after {deadline - began:.0f} s"
        outcome: Figure | str = receiving.recv()
    except EOFError:
        process.join(5.0)
        return f"its process ended with exit code {process.exitcode} and without a figure"
    else:
        return outcome
    finally:
        process.join(5.0)
        if process.is_alive():
            process.kill()
            process.join(5.0)
        receiving.close()


def _work(sending: Connection, parent_pid: int, run: Run, addresses: Addresses, pace: Pace, size: int) -> None:
    die_with_parent(parent_pid)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    outcome: Figure | str
    try:
        outcome = run(addresses, pace, size)
    except Exception as error:  # noqa: BLE001 the report names whatever went wrong
        outcome = "".join(traceback.format_exception_only(error)).strip()
        traceback.print_exc()
    sending.send(outcome)
    sending.close()
