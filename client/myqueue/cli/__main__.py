"""`myqueue`, and the same as `python -m myqueue.cli`."""

import sys
from importlib.util import find_spec

NOT_INSTALLED = "error: the command needs typer and rich: pip install 'myqueue[cli]'"


def main() -> None:
    if find_spec("typer") is None or find_spec("rich") is None:
        print(NOT_INSTALLED, file=sys.stderr)
        sys.exit(2)
    try:
        from myqueue.cli.app import app
    except KeyboardInterrupt:
        sys.exit(130)
    app(prog_name="myqueue")


if __name__ == "__main__":
    main()
