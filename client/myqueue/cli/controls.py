"""Characters that control a terminal, made visible: names and messages are written by others. Pure."""

_CODES = (*range(32), *range(127, 160))
_ESCAPES = {code: f"\\x{code:02x}" for code in _CODES}
_ESCAPES_IN_LINES = {code: escape for code, escape in _ESCAPES.items() if chr(code) not in "\t\n"}
_ESCAPES_IN_JSON = {code: f"\\u{code:04x}" for code in range(127, 160)}  # JSON escapes those below itself


def visible_cell(text: str) -> str:
    """Of one line."""
    return text.translate(_ESCAPES)


def visible_text(text: str) -> str:
    """Line ends and tabs may stay."""
    return text.translate(_ESCAPES_IN_LINES)


def visible_json(text: str) -> str:
    """The same JSON."""
    return text.translate(_ESCAPES_IN_JSON)
