"""Fails when a lock, configuration or document names a package index or a path of somebody's machine."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUFFIXES = {".txt", ".in", ".toml", ".cfg", ".ini", ".md", ".yml", ".yaml", ".json", ".conf", ".js", ".py", ""}
RULES = {
    "a package index": re.compile(
        r"^\s*(--(extra-)?index[-]url|-i|--find-links|-f)\s|\bindex[-]url\s*=|https?://[^\s/]+/(\S+/)?simple\b",
        re.MULTILINE,
    ),
    "a path of one machine": re.compile(r"(?<![\w.}/])/(home|root|work|Users|opt)/\w"),
}


def files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    paths = [ROOT / line for line in listed.stdout.splitlines()]
    return [path for path in paths if path.suffix in SUFFIXES and path.is_file() and path != Path(__file__).resolve()]


def main() -> int:
    problems = 0
    for path in files():
        text = path.read_text(errors="replace")
        for what, pattern in RULES.items():
            for match in pattern.finditer(text):
                line = text.count("\n", 0, match.start()) + 1
                print(f"{path.relative_to(ROOT)}:{line}: names {what}: {match.group().strip()}")
                problems += 1
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
