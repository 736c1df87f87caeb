"""/openapi.json, and /docs, a Swagger page that works offline: its assets come from an installed package."""

import json
from importlib import resources
from importlib.resources.abc import Traversable

import flask_openapi3_swagger

from myqueue.protocol import routes
from myqueue.protocol.errors import RouteNotFound
from myqueue.protocol.openapi import document
from myqueue.protocol.routes import Route
from myqueue.version import VERSION
from service.error_encoding import JSON
from service.http_messages import HttpRequest, HttpResponse
from service.router import Router

ASSETS = {
    "swagger-ui.css": ("css/swagger-ui.css", "text/css"),
    "swagger-ui-bundle.js": ("js/swagger-ui-bundle.js", "text/javascript"),
    "start.js": (None, "text/javascript"),
}
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>myqueue API</title>
<link rel="stylesheet" href="docs/swagger-ui.css">
<link rel="icon" href="data:,">
</head>
<body>
<div id="page"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""
START = """SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#page",
  tryItOutEnabled: true,
  defaultModelsExpandDepth: 0,
});
"""
ASSET = Route("docs_asset", "GET", routes.DOCS.path + "/{name}", "read", "A file of the page")
POLICY = "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'"


def add_docs(router: Router) -> None:
    description = json.dumps(document(VERSION)).encode()
    package = resources.files(flask_openapi3_swagger) / "templates" / "swagger"
    assets = {name: (_content(package, path), kind) for name, (path, kind) in ASSETS.items()}

    def openapi(_: HttpRequest) -> HttpResponse:
        return HttpResponse(200, [("content-type", JSON)], description)

    def docs(request: HttpRequest) -> HttpResponse:
        page = PAGE if not request.path.endswith("/") else PAGE.replace('"docs/', '"').replace("openapi", "../openapi")
        headers = [("content-type", "text/html; charset=utf-8"), ("content-security-policy", POLICY)]
        return HttpResponse(200, headers, page.encode())

    def asset(request: HttpRequest) -> HttpResponse:
        found = assets.get(request.path_values["name"])
        if found is None:
            raise RouteNotFound()
        content, kind = found
        return HttpResponse(200, [("content-type", kind), ("cache-control", "public, max-age=3600")], content)

    router.add(routes.OPENAPI, openapi)
    router.add(routes.DOCS, docs)
    router.add(ASSET, asset)


def _content(package: Traversable, path: str | None) -> bytes:
    return START.encode() if path is None else (package / path).read_bytes()
