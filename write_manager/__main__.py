"""`python -m write_manager`: run one write manager by hand."""

import service.block_pandas  # noqa: F401 - first
from service.settings import load
from write_manager.app import run
from write_manager.config import WriteManagerSettings

if __name__ == "__main__":
    run(load(WriteManagerSettings, "write_manager", "The write manager: metadata, registrations, produce, cursors."))
