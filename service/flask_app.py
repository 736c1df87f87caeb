"""The Flask application of one router: runs plain functions on a bounded pool of threads.

It only converts. Routes are found, and errors encoded, by the router: whatever a handler raises leaves Flask as it is.
"""

import asyncio
import contextvars
import io
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import flask
from werkzeug.exceptions import HTTPException

from myqueue.protocol import http_headers
from myqueue.protocol.errors import InvalidRequest
from service.http_messages import HttpRequest, HttpResponse, ThreadHandler


class _FlaskResponse(flask.Response):
    default_mimetype = None


class FlaskApp:
    def __init__(self, name: str, *, threads: int) -> None:
        self.flask = flask.Flask(name, static_folder=None)
        self.flask.url_map.strict_slashes = False
        self.flask.url_map.merge_slashes = False  # it would answer with a redirect, in HTML
        self.flask.config["TRAP_HTTP_EXCEPTIONS"] = True  # raise them instead of answering in HTML
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="http")

    def add(self, name: str, method: str, path: str, handler: ThreadHandler) -> None:
        def view(**path_values: str) -> flask.Response:
            response = handler(_current_request(path_values))
            return _FlaskResponse(response.joined_body(), response.status, response.headers)

        rule = path.replace("{", "<").replace("}", ">")
        self.flask.add_url_rule(rule, name, view, methods=[method], provide_automatic_options=False)

    async def respond(self, request: HttpRequest) -> HttpResponse:
        """The context goes to the thread too, for the request id in log lines and in calls to other processes."""
        context = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(self._pool, context.run, self._dispatch, request)

    def _dispatch(self, request: HttpRequest) -> HttpResponse:
        try:
            with self.flask.request_context(_environ(request)):
                response = self.flask.full_dispatch_request()
        except HTTPException as error:
            raise InvalidRequest(error.description or error.name) from error
        headers = [(name.lower(), value) for name, value in response.headers.items() if name != "Content-Length"]
        return HttpResponse(response.status_code, headers, response.get_data())

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def _current_request(path_values: dict[str, str]) -> HttpRequest:
    request = flask.request
    return HttpRequest(
        request.method,
        request.path,
        path_values,
        request.query_string.decode("latin-1"),
        request.headers,
        request.get_data(),
        request.headers.get(http_headers.REQUEST_ID),
    )


def _environ(request: HttpRequest) -> dict[str, Any]:
    """The request as WSGI has it."""
    environ: dict[str, Any] = {
        "REQUEST_METHOD": request.method,
        "SCRIPT_NAME": "",
        "PATH_INFO": request.path.encode().decode("latin-1"),  # the server has decoded it; WSGI requires bytes as text
        "QUERY_STRING": request.query_string,
        "SERVER_NAME": "localhost",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(request.body),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }
    for name, value in request.headers.items():
        environ["HTTP_" + name.upper().replace("-", "_")] = value
    if "HTTP_CONTENT_TYPE" in environ:
        environ["CONTENT_TYPE"] = environ.pop("HTTP_CONTENT_TYPE")
    environ.pop("HTTP_CONTENT_LENGTH", None)
    environ["CONTENT_LENGTH"] = str(len(request.body))
    return environ
