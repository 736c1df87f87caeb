"""Runs of jobs and their results, on threads. Internal only: no client may set the statistics."""

from myqueue.protocol import answers, internal
from myqueue.protocol.errors import RunNotFound
from myqueue.protocol.models import BeginRun, EndRun, Nothing, RunResults
from service.http_messages import HttpRequest, HttpResponse
from service.router import Router
from write_manager.results import Results
from write_manager.runs import Runs


def add_job_routes(router: Router, runs: Runs, results: Results) -> None:
    def begin_run(request: HttpRequest) -> HttpResponse:
        run, token = runs.begin(request.parse_json(BeginRun), request.idempotency_key())
        body = answers.RunBegun(
            run_id=run.run_id,
            job=run.job,
            started_at=round(run.started_at.timestamp() * 1000),
            lease_ms=runs.lease_ms,
        )
        return HttpResponse.json(body, 201, session_token=token)

    def renew_run(request: HttpRequest) -> HttpResponse:
        request.parse_json(Nothing)
        runs.renew(_run_id(request))
        return HttpResponse.json(answers.RunRenewed(lease_ms=runs.lease_ms))

    def post_results(request: HttpRequest) -> HttpResponse:
        taken = results.take(_run_id(request), request.parse_json(RunResults))
        body = answers.ResultsTaken(applied=taken.applied, skipped=taken.skipped)
        return HttpResponse.json(body, session_token=taken.token)

    def end_run(request: HttpRequest) -> HttpResponse:
        end = request.parse_json(EndRun)
        token = runs.end(_run_id(request), end)
        body = answers.Done(message=f"run {request.path_values['run_id']} has {end.outcome}")
        return HttpResponse.json(body, session_token=token)

    router.add(internal.BEGIN_RUN, begin_run)
    router.add(internal.RENEW_RUN, renew_run)
    router.add(internal.POST_RESULTS, post_results)
    router.add(internal.END_RUN, end_run)


def _run_id(request: HttpRequest) -> int:
    return request.path_id("run_id", RunNotFound)
