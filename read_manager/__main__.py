"""`python -m read_manager`: run one read manager by hand."""

import service.block_pandas  # noqa: F401 - first
from read_manager.app import run
from read_manager.config import ReadManagerSettings
from service.settings import load

if __name__ == "__main__":
    run(load(ReadManagerSettings, "read_manager", "A read manager: lists, consumes and sizes, from a standby."))
