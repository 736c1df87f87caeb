"""The API's description as OpenAPI 3.1, made from the table of routes and the models."""

import re
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from myqueue.protocol import answers, event_models, http_headers, models, overview, stats_answers, stats_queries
from myqueue.protocol.routes import (
    APPEND_BATCH,
    APPEND_MESSAGES,
    CLUSTER_EVENTS,
    DATA_PLANE,
    FETCH_BATCHES,
    LIST_MESSAGES,
    LOG_API,
    OPERATIONS,
    POLL,
    READ_RANGE,
    ROUTES,
    STATISTICS,
    STATS_PLOT,
    TOPIC_EVENTS,
    Route,
)

JSON = "application/json"

# Bodies that are not JSON: by route, what may be sent, and what may be answered.
_TAKES = {
    APPEND_MESSAGES: (JSON, http_headers.NDJSON_TYPE, http_headers.ARROW_TYPE),
    APPEND_BATCH: (http_headers.BATCH_TYPE,),
}
_GIVES = {
    LIST_MESSAGES: (JSON, http_headers.NDJSON_TYPE, http_headers.ARROW_TYPE),
    POLL: (JSON, http_headers.NDJSON_TYPE),
    READ_RANGE: (JSON, http_headers.NDJSON_TYPE, http_headers.ARROW_TYPE),
    CLUSTER_EVENTS: (http_headers.EVENTS_TYPE,),
    TOPIC_EVENTS: (http_headers.EVENTS_TYPE,),
    FETCH_BATCHES: (http_headers.BATCH_TYPE,),
    **dict.fromkeys(STATISTICS, (JSON, http_headers.CSV_TYPE, http_headers.ARROW_TYPE)),
    STATS_PLOT: (http_headers.SVG_TYPE,),
}

_BINARY = {"type": "string", "contentMediaType": "application/octet-stream"}
_TEXT = {"type": "string"}
_EVENT = {"event": _TEXT, "id": _TEXT, "data": {"type": "string", "contentMediaType": JSON}}
_OTHER = {http_headers.EVENTS_TYPE: {"type": "object", "properties": _EVENT, "description": "Each event."}}

_REASONS = {
    200: "Done",
    201: "Made",
    204: "Nothing to read",
    207: "Some of it was done; the answer says what",
    304: "The client has it already",
    307: "Where the range is, uncached",
    400: "The request breaks the rules; the message names the field",
    401: "No valid grant; ask for the routing again",
    403: "The grant does not cover this",
    404: "No such topic, partition, producer or consumer",
    409: "Exists already, or conflicts with what exists",
    410: "No longer stored; details tell the first offset that is",
    413: "Too large",
    415: "Not a type or a compression that is taken here",
    421: "Another broker leads the partition; details tell which if it is known",
    422: "Beyond the end of the partition",
    503: "Temporarily unavailable; try again after Retry-After",
    507: "The broker's disk is almost full",
}

_WITHOUT_BODY = (204, 304, 307)


def document(version: str) -> dict[str, Any]:
    used = {_model(name) for route in ROUTES for name in (route.request, route.answer) if name} | {answers.Failure}
    _, schemas = models_json_schema(
        [(model, "validation") for model in sorted(used, key=lambda model: model.__name__)],
        ref_template="#/components/schemas/{model}",
        by_alias=True,
    )
    paths: dict[str, Any] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "myqueue",
            "version": version,
            "description": "A durable, replicated, partitioned message log that speaks plain HTTP.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {"schemas": schemas.get("$defs", {})},
    }


def _model(name: str) -> type[BaseModel]:
    modules = (models, event_models, stats_queries, answers, stats_answers, overview)
    model: type[BaseModel] = next(getattr(module, name) for module in modules if hasattr(module, name))
    return model


def _operation(route: Route) -> dict[str, Any]:
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", route.path)
    ]
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "tags": [_tag(route)],
    }
    if route.request and route.method == "GET":
        parameters += _query(_model(route.request))
    elif route.request or route in _TAKES:
        operation["requestBody"] = {"required": True, "content": _content(route.request, _TAKES.get(route, (JSON,)))}
    if route in DATA_PLANE:
        parameters.append({"name": http_headers.GRANT, "in": "header", "required": True, "schema": {"type": "string"}})
    if route.keyed:
        parameters.append(
            {
                "name": http_headers.IDEMPOTENCY_KEY,
                "in": "header",
                "description": "The same key gets the same answer, so a retry is safe.",
                "schema": {"type": "string", "maxLength": 200},
            }
        )
    if parameters:
        operation["parameters"] = parameters
    operation["responses"] = _responses(route)
    return operation


def _query(model: type[BaseModel]) -> list[dict[str, Any]]:
    schema = model.model_json_schema(by_alias=True)
    required = schema.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": field}
        for name, field in schema.get("properties", {}).items()
    ]


def _failures(route: Route) -> set[int]:
    """Its own, and those that any call of the API can meet."""
    if route in OPERATIONS:
        return set(route.failures)
    return {*route.failures, 400, 503, *((413, 415) if route.method != "GET" else ())}


def _responses(route: Route) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status in route.success:
        responses[str(status)] = {"description": _REASONS[status]}
        if (route.answer or route in _GIVES) and status not in _WITHOUT_BODY:
            responses[str(status)]["content"] = _content(route.answer, _GIVES.get(route, (JSON,)))
    for status in sorted(_failures(route)):
        responses[str(status)] = {
            "description": _REASONS[status],
            "content": _content("Failure", (JSON,)),
        }
    return responses


def _content(model: str | None, types: tuple[str, ...]) -> dict[str, Any]:
    return {kind: {"schema": _ref(model) if kind == JSON and model else _OTHER.get(kind, _BINARY)} for kind in types}


def _tag(route: Route) -> str:
    if route in OPERATIONS:
        return "operations"
    if route in DATA_PLANE:
        return "data plane"
    if route in STATISTICS:
        return "statistics"
    return "log API" if route in LOG_API else "simple API"


def _ref(model: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{model}"}
