"""Routes that every process has: /healthz, /readyz, /metrics."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from myqueue.protocol.routes import HEALTHZ, METRICS, READYZ
from service.http_messages import Headers, HttpRequest, HttpResponse
from service.router import Router


class Readiness:
    """Named checks; each returns None or the problem."""

    def __init__(self, checks: Mapping[str, Callable[[], str | None]]) -> None:
        self._checks = checks

    def problems(self) -> dict[str, str]:
        return {name: problem for name, check in self._checks.items() if (problem := check()) is not None}

    @property
    def names(self) -> Iterable[str]:
        return self._checks.keys()


def add_operations(router: Router, service: str, readiness: Readiness, registry: CollectorRegistry) -> None:
    async def healthz(_: HttpRequest) -> HttpResponse:
        return HttpResponse.json({"status": "success", "service": service, "checks": {}})

    def readyz(request: HttpRequest) -> HttpResponse:
        problems = readiness.problems()
        checks = {name: problems.get(name, "ok") for name in readiness.names}
        body: dict[str, Any] = {"status": "failure" if problems else "success", "service": service, "checks": checks}
        if not problems:
            return HttpResponse.json(body)
        body |= {
            "error_code": 50301,
            "message": "; ".join(f"{name}: {problem}" for name, problem in problems.items()),
            "retriable": True,
            "request_id": request.request_id,
        }
        return HttpResponse.json(body, 503, [("retry-after", "1")])

    def metrics(_: HttpRequest) -> HttpResponse:
        headers: Headers = [("content-type", CONTENT_TYPE_LATEST)]
        return HttpResponse(200, headers, generate_latest(registry))

    # Whether the process lives must not depend on how many requests wait for a thread.
    router.add(HEALTHZ, healthz, quiet=True, gated=False, limited=False)
    router.add(READYZ, readyz, quiet=True, gated=False)
    router.add(METRICS, metrics, quiet=True, gated=False)
