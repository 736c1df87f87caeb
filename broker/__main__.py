"""`python -m broker`"""

import sys

import service.block_pandas  # noqa: F401 - first
from broker.app import run
from broker.config import BrokerSettings
from broker.storage.disk import StorageRefused
from service.settings import load


def main() -> int:
    settings = load(BrokerSettings, "broker", "A broker: keeps partitions, appends to them and reads from them.")
    try:
        run(settings)
    except StorageRefused as refusal:
        print(f"broker: {refusal}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
