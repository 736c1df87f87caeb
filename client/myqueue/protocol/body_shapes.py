"""The section of docs/api.md that shows the shape of every body, made from the models.

`python -m myqueue.protocol.body_shapes docs/api.md` writes it; a test compares.
"""

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

from myqueue.protocol import http_headers
from myqueue.protocol.models import BYTES_SCHEMA
from myqueue.protocol.openapi import JSON, document
from myqueue.protocol.routes import ROUTES, Route

BEGIN, END = "<!-- bodies: made from the models -->", "<!-- end of bodies -->"
_NAMES = {"integer": "int", "boolean": "bool", "string": "string", "number": "number", "null": "null"}
_BINARY = {
    http_headers.ARROW_TYPE: "an Arrow stream",
    http_headers.BATCH_TYPE: "batches, as above",
    http_headers.EVENTS_TYPE: "an event stream",
    http_headers.NDJSON_TYPE: "a message in each line (NDJSON)",
}
_WIDTH = 116

Schema = dict[str, Any]


class BodyShapes:
    def __init__(self, openapi: Schema) -> None:
        self._paths = openapi["paths"]
        self._schemas = openapi["components"]["schemas"]

    def section(self) -> str:
        return "\n".join([BEGIN, "", "```text", *(line for route in ROUTES for line in self._route(route)), "```", END])

    def _route(self, route: Route) -> list[str]:
        operation = self._paths[route.path][route.method.lower()]
        lines = [f"{route.method} {route.path}"]
        if "requestBody" in operation and route.method != "DELETE":
            lines += self._content("body", operation["requestBody"]["content"], is_request=True)
        query = [parameter for parameter in operation.get("parameters", []) if parameter["in"] == "query"]
        if query:
            fields = [self._field(each["name"], each["schema"], each["required"]) for each in query]
            lines += _wrapped("query", ", ".join(fields))
        responses = {status: operation["responses"][str(status)].get("content", {}) for status in route.success}
        with_body = [str(status) for status in route.success if status < 300 and status != 204]
        lines += self._content(" or ".join(with_body), responses[route.success[0]], is_request=False)
        without = [str(status) for status in route.success if str(status) not in with_body]
        return [*lines, *([f"  {' or '.join(without)} without a body"] if without else []), ""]

    def _content(self, label: str, content: Schema, *, is_request: bool) -> list[str]:
        if not content:
            return [f"  {label} no JSON of this kind"]
        lines = []
        for kind, media in content.items():
            if kind == JSON and "$ref" in media["schema"]:
                fields = self._fields(self._resolved(media["schema"]), is_request)
                lines += _wrapped(label, "{" + ", ".join(fields) + "}")
            else:
                lines.append(f"  {label} {_BINARY.get(kind, kind)}")
        return lines

    def _fields(self, schema: Schema, is_request: bool) -> list[str]:
        required = schema.get("required", [])
        return [
            self._field(name, field, name in required or "const" in field, is_request)
            for name, field in schema.get("properties", {}).items()
            if not field.get("deprecated")
        ]

    def _field(self, name: str, schema: Schema, is_required: bool, is_request: bool = True) -> str:
        shape = self._shape(schema, is_request)
        default = schema.get("default")
        if is_required:
            return f'"{name}": {shape}'
        if is_request and default not in (None, [], {}):
            return f'"{name}"?: {shape} = {json.dumps(default)}'
        return f'"{name}"?: {shape}'

    def _shape(self, schema: Schema, is_request: bool) -> str:
        if schema.get("oneOf") == BYTES_SCHEMA["oneOf"]:
            return "text"
        if "$ref" in schema:
            schema = self._resolved(schema)
        if "const" in schema:
            return json.dumps(schema["const"])
        if "enum" in schema:
            return " | ".join(map(json.dumps, schema["enum"]))
        if alternatives := schema.get("anyOf") or schema.get("oneOf"):
            return " | ".join(self._shape(each, is_request) for each in alternatives)
        if schema.get("type") == "array":
            return f"[{self._shape(schema['items'], is_request)}, ...]"
        if "properties" in schema:
            return "{" + ", ".join(self._fields(schema, is_request)) + "}"
        if schema.get("type") == "object" or not schema.get("type"):
            return "{...}"
        return _NAMES[schema["type"]]

    def _resolved(self, schema: Schema) -> Schema:
        found: Schema = self._schemas[schema["$ref"].rpartition("/")[2]]
        return found


def _wrapped(label: str, text: str) -> list[str]:
    start = f"  {label} "
    return textwrap.wrap(
        text, _WIDTH, initial_indent=start, subsequent_indent=" " * (len(start) + 1), break_on_hyphens=False
    )


def with_section(page: str) -> str:
    """The page with its section of bodies made anew."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN} and {END}")
    return before + BodyShapes(document("")).section() + after


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(with_section(file.read_text(encoding="utf-8")), encoding="utf-8")
