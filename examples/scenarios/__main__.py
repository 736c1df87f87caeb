"""The verbs behind examples/run-producer, run-consumer, 2P2C and 5P3C."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VERBS = ("produce", "consume", "run", "generate")


def missing() -> "str | None":
    """The missing requirement, if any; checked before the imports that need it."""
    advice = f"run `make up` in {ROOT}, or with Python 3.11 or newer: pip install {ROOT / 'client'}"
    if sys.version_info < (3, 11):  # noqa: UP036  # it may be any python3 of the machine
        return f"Python {sys.version.split()[0]} is too old: {advice}"
    try:
        import myqueue.producer  # noqa: F401
    except ModuleNotFoundError as error:
        return f"the library myqueue is not installed for {sys.executable} ({error}): {advice}"
    return None


def main(arguments: "list[str]") -> int:
    problem = missing()
    if problem is not None:
        print(problem, file=sys.stderr)
        return 2
    verb, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if verb == "produce":
        from examples.scenarios.producer import main as run
    elif verb == "consume":
        from examples.scenarios.consumer import main as run
    elif verb == "run":
        from examples.scenarios.runner import main as run
    elif verb == "generate":
        from examples.scenarios.generator import main as run
    else:
        print(f"usage: python -m examples.scenarios {'|'.join(VERBS)} …; each has --help", file=sys.stderr)
        return 2
    return run(rest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
