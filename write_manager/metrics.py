"""Every metric of the write manager, besides those of its HTTP requests."""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge

from db.job_runs import JobSummary


class WriteManagerMetrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.claims_expired = Counter(
            "myqueue_claims_expired",
            "Claims that were not reported as delivered in time: their messages are read again and may come twice",
            registry=self.registry,
        )
        self._claims_in_flight = Gauge(
            "myqueue_claims_in_flight", "Claimed messages that are not delivered yet", registry=self.registry
        )
        self._damaged_replicas = Gauge(
            "myqueue_damaged_replicas",
            "Replicas that their brokers reported as damaged and that are not rebuilt yet",
            registry=self.registry,
        )

        self._active = Gauge(
            "myqueue_write_manager_active", "1 if this write manager is the active one", registry=self.registry
        )
        self._job_succeeded = self._of_job("last_success_timestamp_seconds", "When the last run that succeeded ended")
        self._job_failed = self._of_job("last_run_failed", "1 if the last run that ended has failed or was lost")
        self._job_took = self._of_job("last_run_seconds", "How long the last run that ended took")
        self._job_rows = self._of_job("last_run_rows", "Messages or rows that the last run that ended went through")
        self._job_left_out = self._of_job("last_run_left_out", "Consumers that the last run left out, beyond its limit")
        self.job_runs = Counter(
            "myqueue_job_runs",
            "Runs that ended, since this process started",
            ["stats_job", "outcome"],
            registry=self.registry,
        )

    def watch_active(self, is_active: Callable[[], bool]) -> None:
        self._active.set_function(is_active)

    def _of_job(self, name: str, text: str) -> Gauge:
        return Gauge(f"myqueue_job_{name}", text, ["stats_job"], registry=self.registry)

    def set_jobs(self, jobs: Iterable[JobSummary]) -> None:
        """From what is stored, so that another write manager goes on with the same values."""
        for each in jobs:
            if each.succeeded_at is not None:
                self._job_succeeded.labels(each.job).set(each.succeeded_at.timestamp())
            self._job_failed.labels(each.job).set(each.outcome != "succeeded")
            self._job_took.labels(each.job).set(each.took_s)
            self._job_rows.labels(each.job).set(each.rows)
            self._job_left_out.labels(each.job).set(each.left_out)

    def watch_claims_in_flight(self, count: Callable[[], int]) -> None:
        self._claims_in_flight.set_function(count)

    def watch_damaged_replicas(self, count: Callable[[], int]) -> None:
        self._damaged_replicas.set_function(count)
