"""Commands and code as the documents print them."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHELL, PROMPTED, PYTHON, TEXT = "sh", "console", "python", "text"
# Each kind is run, looked through, or data: a name that is not here would be none of these, unnoticed.
LANGUAGES = (SHELL, PROMPTED, PYTHON, TEXT, "json", "toml", "yaml")
_FENCE = re.compile(r"^ *(?:```+|~~~+) *(.*?) *$")
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_PROMPT = "$ "
_ASSIGNMENT = re.compile(r"^[A-Z_]+=")
_KEYWORDS = ("do", "done", "then", "fi")


@dataclass(frozen=True, slots=True)
class Block:
    page: str
    line: int  # of its first line within the page
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks_of(page: Path) -> Iterator[Block]:
    """Every fenced block of the page, in order."""
    lines = page.read_text().splitlines()
    opened: tuple[int, str] | None = None
    for number, line in enumerate(lines):
        fence = _FENCE.match(line)
        if fence and opened is None:
            assert fence[1] in LANGUAGES, f"{page}, line {number + 1}: {fence[1]!r} is none of {', '.join(LANGUAGES)}"
            opened = (number + 1, fence[1])
        elif fence and opened is not None:
            assert not fence[1], f"{page}, line {number + 1}: the block before is not closed"
            start, language = opened
            indent = len(line) - len(line.lstrip())
            text = "\n".join(inner[indent:] for inner in lines[start:number])
            yield Block(str(page.relative_to(ROOT)), start + 1, language, text)
            opened = None
    assert opened is None, f"{page}: a block is not closed"


def spans_of(page: Path) -> list[str]:
    """What stands between single backquotes, outside of blocks."""
    text = page.read_text()
    for block in blocks_of(page):
        text = text.replace(block.text, "")
    return [span.replace("\\|", "|") for span in _SPAN.findall(text)]


def commands_of(block: Block) -> list[str]:
    """Its lines, those that a backslash continues in one piece; of a block with prompts, what was typed."""
    lines = block.text.split("\n")
    if block.language == PROMPTED:
        lines = [line.removeprefix(_PROMPT) for line in lines if line.startswith(_PROMPT)]
    commands, begun = [], ""
    for line in lines:
        begun += line
        if line.endswith("\\"):
            begun += "\n"
            continue
        commands.append(begun)
        begun = ""
    return commands


def calls_of(command: str) -> list[list[str]]:
    """The words of each program that a line calls, without variables set in front; of a line that only begins
    something, none."""
    lexer = shlex.shlex(command.replace("\\\n", " "), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        tokens = list(lexer)
    except ValueError:
        return []
    calls: list[list[str]] = [[]]
    for token in tokens:
        if token in _KEYWORDS or not token.strip(lexer.punctuation_chars):
            calls.append([])
        elif calls[-1] or not _ASSIGNMENT.match(token):
            calls[-1].append(token)
    return [call for call in calls if call]
