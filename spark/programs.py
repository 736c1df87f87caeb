"""Small programs that stand in front of the real ones, put into a folder as whole files."""

import os
from pathlib import Path


def write_program(path: Path, text: str) -> Path:
    """Processes that start at the same time each put a whole file in place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.chmod(0o755)
    temporary.replace(path)
    return path
