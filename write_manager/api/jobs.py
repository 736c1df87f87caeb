"""Runs of jobs and what they found. Inside only: nobody else may say what the figures are."""

from myqueue.protocol import answers, http_headers, internal
from myqueue.protocol.errors import InvalidRequest, RunNotFound
from myqueue.protocol.models import MAX_ID, BeginRun, EndRun, Nothing, RunResults
from myqueue.protocol.token import Token
from service.idempotency import idempotency_key
from service.web import Reply, WebApp, parse_json
from write_manager.results import Results
from write_manager.runs import Runs


def add_job_routes(app: WebApp, runs: Runs, results: Results) -> None:
    def begin_run() -> Reply:
        run, token = runs.begin(parse_json(BeginRun), idempotency_key())
        body = answers.RunBegun(
            run_id=run.run_id,
            job=run.job,
            started_at=round(run.started_at.timestamp() * 1000),
            lease_ms=runs.lease_ms,
        )
        return Reply(body, 201, _token(token))

    def renew_run(run_id: str) -> Reply:
        parse_json(Nothing)
        runs.renew(_number(run_id))
        return Reply(answers.RunRenewed(lease_ms=runs.lease_ms))

    def post_results(run_id: str) -> Reply:
        taken = results.take(_number(run_id), parse_json(RunResults))
        return Reply(answers.ResultsTaken(applied=taken.applied, skipped=taken.skipped), 200, _token(taken.token))

    def end_run(run_id: str) -> Reply:
        request = parse_json(EndRun)
        token = runs.end(_number(run_id), request)
        return Reply(answers.Done(message=f"run {run_id} has {request.outcome}"), 200, _token(token))

    app.internal("begin_run", "POST", internal.BEGIN_RUN, begin_run)
    app.internal("renew_run", "POST", internal.RENEW_RUN, renew_run)
    app.internal("post_results", "POST", internal.POST_RESULTS, post_results)
    app.internal("end_run", "POST", internal.END_RUN, end_run)


def _number(run_id: str) -> int:
    if not (run_id.isascii() and run_id.isdecimal() and len(run_id) <= 19):
        raise InvalidRequest("run_id: must be a number")
    if int(run_id) > MAX_ID:
        raise RunNotFound()
    return int(run_id)


def _token(token: Token | None) -> dict[str, str]:
    return {} if token is None else {http_headers.TOKEN: str(token)}
