"""The API's description and a page to read and try it. Works offline: all assets come from the package."""

import json
from importlib import resources
from importlib.resources.abc import Traversable

import flask_openapi3_swagger
from flask import Response, request

from myqueue.protocol import routes
from myqueue.protocol.openapi import document
from myqueue.version import VERSION
from service.web import WebApp

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
POLICY = "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'"


def add_docs(app: WebApp) -> None:
    description = json.dumps(document(VERSION))
    package = resources.files(flask_openapi3_swagger) / "templates" / "swagger"
    assets = {name: (_content(package, path), kind) for name, (path, kind) in ASSETS.items()}

    def openapi() -> Response:
        return Response(description, content_type="application/json")

    def docs() -> Response:
        page = PAGE if not request.path.endswith("/") else PAGE.replace('"docs/', '"').replace("openapi", "../openapi")
        return Response(page, content_type="text/html; charset=utf-8", headers={"Content-Security-Policy": POLICY})

    def asset(name: str) -> Response:
        if name not in assets:
            app.flask.aborter(404)
        content, kind = assets[name]
        return Response(content, content_type=kind, headers={"Cache-Control": "public, max-age=3600"})

    app.page(routes.OPENAPI.name, routes.OPENAPI.path, openapi)
    app.page(routes.DOCS.name, routes.DOCS.path, docs)
    app.page("docs_asset", routes.DOCS.path + "/{name}", asset)


def _content(package: Traversable, path: str | None) -> bytes:
    return START.encode() if path is None else (package / path).read_bytes()
