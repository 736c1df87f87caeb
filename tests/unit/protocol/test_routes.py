"""The table of routes, and the OpenAPI document made from it."""

from myqueue.protocol import answers, event_models, models, overview, stats_answers, stats_queries
from myqueue.protocol.openapi import document
from myqueue.protocol.routes import (
    CLUSTER_EVENTS,
    CONSUME,
    DATA_PLANE,
    FETCH_BATCHES,
    OPERATIONS,
    POLL,
    ROUTES,
    TOPIC_EVENTS,
    allowed_methods,
)


def test_names_and_calls_are_unique_and_models_exist() -> None:
    assert len({route.name for route in ROUTES}) == len(ROUTES)
    assert len({(route.method, route.path) for route in ROUTES}) == len(ROUTES)
    for route in ROUTES:
        for name in (route.request, route.answer):
            modules = (models, event_models, stats_queries, answers, overview, stats_answers)
            assert name is None or any(hasattr(module, name) for module in modules)


def test_managers_read_by_get_and_poll_and_write_by_everything_else() -> None:
    for route in ROUTES:
        if route not in DATA_PLANE:
            assert (route.method == "GET" or route is POLL) == (route.tier == "read"), route.name


def test_the_data_plane_and_nothing_else_lies_below_the_brokers() -> None:
    for route in ROUTES:
        below = route.path.startswith("/v1/brokers/{broker_id}/")
        assert below == (route in DATA_PLANE) == (route.tier == "broker"), route.name


def test_only_calls_that_move_a_cursor_or_batches_or_have_no_end_refuse_head() -> None:
    assert [route for route in ROUTES if not route.head] == [CONSUME, TOPIC_EVENTS, CLUSTER_EVENTS, FETCH_BATCHES]


def test_allowed_methods_of_a_path() -> None:
    assert allowed_methods("/topics") == ("GET", "POST")
    assert allowed_methods("/nowhere") == ()


def test_openapi_has_every_route_and_resolves() -> None:
    description = document("1.2.3")
    assert description["openapi"] == "3.1.0"
    for route in ROUTES:
        operation = description["paths"][route.path][route.method.lower()]
        assert operation["operationId"] == route.name
        anywhere = set() if route in OPERATIONS else {400, 503} if route.method == "GET" else {400, 413, 415, 503}
        assert {int(status) for status in operation["responses"]} == {*route.success, *route.failures, *anywhere}
    schemas = description["components"]["schemas"]
    for reference in _references(description):
        assert reference.removeprefix("#/components/schemas/") in schemas, reference
    assert "from" in schemas["RegisterConsumer"]["properties"]


def _references(node: object) -> list[str]:
    if isinstance(node, dict):
        own = [node["$ref"]] if "$ref" in node else []
        return own + [found for value in node.values() for found in _references(value)]
    if isinstance(node, list):
        return [found for value in node for found in _references(value)]
    return []
