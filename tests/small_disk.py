"""A file system of its own with little room, mounted from an image."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests import required


@contextmanager
def small_disk(folder: Path, name: str, size_bytes: int) -> Iterator[Path]:
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        required.skip("a file system cannot be mounted: that needs root and mkfs.ext4")
    image, place = folder / f"{name}.image", folder / name
    with image.open("wb") as file:
        file.truncate(size_bytes)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", "-F", image], check=True)
    place.mkdir()
    mounted = subprocess.run(["mount", "-o", "loop", image, place], capture_output=True, check=False, text=True)
    if mounted.returncode != 0:
        required.skip(f"a file system cannot be mounted: {mounted.stderr.strip()}")
    try:
        (place / "lost+found").rmdir()
        yield place
    finally:
        subprocess.run(["umount", place], check=True)
        image.unlink()
