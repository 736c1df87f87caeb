"""What the commands print: data on stdout, everything else on stderr.

Tables have colours on a terminal and are plain aligned text elsewhere; `-o json` prints one JSON document, or one
object a line for a stream of results. Characters that control a terminal are escaped: names and messages are foreign.
"""

import json
import re
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

if TYPE_CHECKING:
    from rich.console import Console

_CODES = (*range(32), *range(127, 160))
_ESCAPES = {code: f"\\x{code:02x}" for code in _CODES}
_ESCAPES_IN_LINES = {code: escape for code, escape in _ESCAPES.items() if chr(code) not in "\t\n"}
_ESCAPES_IN_JSON = {code: f"\\u{code:04x}" for code in range(127, 160)}  # JSON escapes those below itself
NOTHING = "-"
_NUMBER = re.compile(r"[+-]?\d[\d,.]*( ([KMGT]i)?B)?", re.ASCII)


def visible_cell(text: str) -> str:
    """Of one line."""
    return text.translate(_ESCAPES)


def visible_text(text: str) -> str:
    """Line ends and tabs may stay."""
    return text.translate(_ESCAPES_IN_LINES)


def visible_json(text: str) -> str:
    """The same JSON."""
    return text.translate(_ESCAPES_IN_JSON)


class Styled(NamedTuple):
    """A cell or a text with a colour where there are colours, such as "green" or "bold red"."""

    text: str
    style: str


Cell = str | int | float | Styled | None


class Output:
    def __init__(self, *, as_json: bool = False, color: bool = True) -> None:
        self.as_json = as_json
        self.as_csv = False
        self.color = color

    @property
    def on_terminal(self) -> bool:
        """Whether stdout is a terminal."""
        return sys.stdout.isatty()

    @property
    def watched(self) -> bool:
        """Whether stderr is a terminal: progress is shown only there."""
        return sys.stderr.isatty()

    def document(self, value: object) -> None:
        """The one JSON document of a command."""
        indent = 2 if self.on_terminal else None
        sys.stdout.write(_json_text(value, sys.stdout, indent=indent) + "\n")

    def line(self, value: object) -> None:
        """One of many JSON objects, flushed at once."""
        sys.stdout.write(_json_text(value, sys.stdout, separators=(",", ":")) + "\n")
        sys.stdout.flush()

    def text(self, text: str | Styled) -> None:
        """A line for people."""
        self._write(sys.stdout, text)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
        """Columns of numbers are aligned to the right."""
        cells = [list(row) for row in rows]
        right = [_is_column_of_numbers([row[at] for row in cells]) for at in range(len(columns))]
        if self.on_terminal and self.color:
            self.console().print(rich_table(columns, cells, right))
            return
        for line in plain_table(columns, cells, right):
            sys.stdout.write(line + "\n")

    def note(self, text: str | Styled) -> None:
        """A note for the user, on stderr."""
        self._write(sys.stderr, text)

    def failure(self, body: object) -> None:
        """An error as JSON, on stderr."""
        sys.stderr.write(_json_text(body, sys.stderr) + "\n")
        sys.stderr.flush()

    def console(self, *, stderr: bool = False) -> "Console":
        """For live tables and progress bars of rich."""
        from rich.console import Console

        return Console(stderr=stderr, no_color=not self.color, highlight=False)

    def _write(self, stream: TextIO, text: str | Styled) -> None:
        if isinstance(text, Styled):
            if self.color and stream.isatty():
                from rich.text import Text

                shown = Text(visible_text(text.text), text.style)
                self.console(stderr=stream is sys.stderr).print(shown, soft_wrap=True)
                return
            text = text.text
        stream.write(visible_text(text) + "\n")
        stream.flush()


def cell_text(cell: Cell) -> str:
    if cell is None:
        return NOTHING
    return visible_cell(cell.text if isinstance(cell, Styled) else str(cell))


def _json_text(value: object, stream: TextIO, **style: Any) -> str:
    """Escapes what the stream cannot encode, and what would control a terminal, as JSON does."""
    in_ascii = (stream.encoding or "utf-8").lower() not in ("utf-8", "utf8")
    return visible_json(json.dumps(value, ensure_ascii=in_ascii, **style))


def plain_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]], right: Sequence[bool]) -> list[str]:
    """Aligned text, two blanks between columns, none at the end of a line."""
    texts = [[column.upper() for column in columns], *([cell_text(cell) for cell in row] for row in rows)]
    widths = [max(len(row[at]) for row in texts) for at in range(len(columns))]
    return [
        "  ".join(
            text.rjust(width) if flush else text.ljust(width)
            for text, width, flush in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in texts
    ]


def rich_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]], right: Sequence[bool]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column, flush in zip(columns, right, strict=True):
        table.add_column(column.upper(), justify="right" if flush else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell_text(cell), cell.style if isinstance(cell, Styled) else "") for cell in row))
    return table


def _is_column_of_numbers(cells: Sequence[Cell]) -> bool:
    return any(cell is not None for cell in cells) and all(
        cell is None or _NUMBER.fullmatch(cell_text(cell)) for cell in cells
    )


def bytes_text(count: int) -> str:
    """`1.5 MiB`"""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024 or unit == "TiB":
            return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("there is a last unit")


def duration_text(seconds: float) -> str:
    """`0.4s`, `12s`, `3m5s`, `2h3m`, `4d2h`"""
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    for size, name, smaller, smaller_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size}{name}" + (f"{rest}{smaller_name}" if rest else "")
    return f"{whole}s"


def plural(count: int, one: str, many: str | None = None) -> str:
    """`1 message`, `1,234 messages`"""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
