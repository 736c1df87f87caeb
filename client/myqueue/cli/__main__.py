"""`myqueue`, and the same as `python -m myqueue.cli`."""

import io
import os
import signal
import sys
from importlib.util import find_spec

NOT_INSTALLED = "error: the command needs typer and rich: pip install 'myqueue[cli]'"


def main() -> None:
    _have_all_streams()
    _end_orderly_by_sigterm()
    if find_spec("typer") is None or find_spec("rich") is None:
        print(NOT_INSTALLED, file=sys.stderr)
        sys.exit(2)
    try:
        from myqueue.cli.app import app
    except KeyboardInterrupt:
        sys.exit(130)
    app(prog_name="myqueue")


def _have_all_streams() -> None:
    """Opens /dev/null for closed streams: otherwise the next connection would get their file descriptor."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            setattr(sys, name, open(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr: do not fail on text that cannot be encoded


def _end_orderly_by_sigterm() -> None:
    """As Ctrl-C: print counts, commit what was printed, release leases, delete temporary topics."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


if __name__ == "__main__":
    main()
