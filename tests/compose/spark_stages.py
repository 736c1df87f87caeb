"""Spark in containers: the scheduler alone, then on a cluster whose workers are added and killed."""

import json
import time
from collections.abc import Mapping
from typing import Any

import requests

from myqueue import Admin, Producer
from tests.calls import Calls
from tests.compose.deployment import PROFILES, Container, Deployment, ImageBuild
from tests.compose.engine import LOOK_S
from tests.compose.failure import StageFailed
from tests.compose.stages import IN_MEMORY, RETURN_S
from tests.compose.transcript import Transcript
from tests.spark.quick_java import QUICK_JAVA
from tests.waiting import until

SPARK_S = 240  # for Java to start on a busy machine, and a first run
RUN_S = 120
TOPIC, PARTITIONS, CONSUMER = "figures", 4, "reader"
COUNTS, LAG = "partition_metrics", "consumer_lag"
JOBS = (COUNTS, LAG)
SETTINGS = {
    # Often, so that there is always a run to come or to interrupt.
    **{f"MYQUEUE_SPARK_{job.upper()}": "interval:3s" for job in JOBS},
    "MYQUEUE_SPARK_TOPIC_ROLLUP": "off",
    "JAVA_TOOL_OPTIONS": " ".join(QUICK_JAVA.values()),
}
MASTER, MASTER_URL = "spark-master", "spark://spark-master:7077"
WORKER, WORKERS = "spark-worker", 2
SCHEDULER = "spark"
APPLICATION = "myqueue scheduler"
EXECUTOR = "CoarseGrainedExecutorBackend"
PYTHON_WORKERS = "spark.worker_daemon"
BATCH = 20_000
LARGE_BATCH = 200_000  # a run over it takes longer than a kill
ATTEMPTS = 3
TAKEN = 7
# Run in the master's own container: its page is not published.
ASK_MASTER = "import urllib.request as u; print(u.urlopen('http://spark-master:8080/json/', timeout=5).read().decode())"
TASKS_DONE = "cat /tmp/spark/work/app-*/*/stderr* | grep -c 'Executor: Finished task' || true"


class Figures:
    """A topic and a consumer of it, and what the jobs say of both, through the published port."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._sent = self._taken = 0
        with Admin(calls.url) as admin:
            admin.create_topic(TOPIC, PARTITIONS)
        self._consumer = calls.consumer(TOPIC, name=CONSUMER)

    def send(self, count: int) -> None:
        """Over all partitions, so that a run has a task for each of them."""
        values = [b"%d" % number for number in range(self._sent, self._sent + count)]
        with Producer(self._calls.url, TOPIC) as producer:
            producer.send_many(values, keys=values).result(30)
        self._sent += count

    def take(self, count: int) -> None:
        for _ in range(count):
            answer = self._calls.consume(TOPIC, self._consumer)
            assert answer.status_code == 200, answer.text
        self._taken += count

    def newest_run(self) -> int:
        runs = self._calls.get("/v1/stats/runs", limit=1).json()["runs"]
        return int(runs[0]["run_id"]) if runs else -1

    def await_long_run(self, holder: Container, *, within_s: float) -> int:
        """A run of partition_metrics that has just begun and has much to read."""
        for _ in range(ATTEMPTS):
            self.send(LARGE_BATCH)
            newest = self.newest_run()
            what = f"a run of {COUNTS} in {holder.name} begins"
            runs = until(lambda newest=newest: self.runs_of(holder, COUNTS, newest), within_s=within_s, what=what)  # type: ignore[misc]
            # The run before may have read what was sent while it began.
            if self._sent - sum(one["messages"] for one in self._partitions()) >= LARGE_BATCH // 2:
                return int(runs[0]["run_id"])
        raise StageFailed(f"{ATTEMPTS} runs of {COUNTS} had little to read")

    def runs_of(self, holder: Container, job: str, after: int) -> list[dict[str, Any]]:
        """That this scheduler began after a run, the oldest first."""
        runs = self._calls.get("/v1/stats/runs", job=job, limit=100).json()["runs"]
        own = [run for run in runs if run["run_id"] > after and run["holder"].startswith(holder.id[:12])]
        return sorted(own, key=lambda run: int(run["run_id"]))

    def await_exact(self, holder: Container, *, within_s: float) -> str:
        """A run of each job that begins now succeeds, none fails, and what they counted is what there is."""
        newest = self.newest_run()
        for job in JOBS:
            until(
                lambda job=job: self._has_succeeded(self.runs_of(holder, job, newest)),  # type: ignore[misc]
                within_s=within_s,
                what=f"a run of {job} in {holder.name} succeeds",
                pause_s=LOOK_S,
            )
        counted = self._partitions()
        behind = self._calls.get("/v1/stats/consumers", topic=TOPIC).json()["consumers"]
        messages, lag = (sum(one["messages"] for one in listed) for listed in (counted, behind))
        if messages != self._sent or any(one["gaps"] or one["duplicates"] for one in counted):
            raise StageFailed(f"{COUNTS} counted {messages} messages of {self._sent}: {counted}")
        if lag != self._sent - self._taken:
            raise StageFailed(f"{LAG} says {lag} of a consumer that is {self._sent - self._taken} behind: {behind}")
        return f"{COUNTS} counted {messages} messages of {self._sent}, {LAG} {lag} not read by {CONSUMER}"

    def _partitions(self) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = self._calls.get("/v1/stats/partitions", topic=TOPIC).json()["partitions"]
        return listed

    @staticmethod
    def _has_succeeded(runs: list[dict[str, Any]]) -> bool:
        failed = [run for run in runs if run["outcome"] not in ("succeeded", "running")]
        if failed:
            raise StageFailed(f"a run failed: {failed[0]}")
        return any(run["outcome"] == "succeeded" for run in runs)


def spark(deployment: Deployment, script: Transcript, image: ImageBuild) -> None:
    """Beside the stack in memory. Master and workers start while the scheduler still runs its jobs by itself."""
    with script.step("build the Spark image, begun before"):
        image.await_end()
    deployment.set(SETTINGS)
    with requests.Session() as session:
        figures = Figures(Calls(deployment.url, session))
        with script.step("Spark scheduler runs jobs by itself") as found:
            figures.send(20)
            figures.take(TAKEN)
            scheduler = _up(deployment)
            found.append(figures.await_exact(scheduler, within_s=SPARK_S))
        _on_cluster(deployment, script, figures)
        _more_workers(deployment, script)
        _secrets(deployment, script)
        _killed_worker(deployment, script, figures)
        _killed_master(deployment, script, figures)


def _up(deployment: Deployment, **variables: str) -> Container:
    deployment.choose(env_file=IN_MEMORY, profiles=PROFILES, **variables)
    deployment.up("--scale", f"{WORKER}={WORKERS}", SCHEDULER, MASTER, WORKER)
    return _scheduler(deployment)


def _scheduler(deployment: Deployment) -> Container:
    return deployment.containers(SCHEDULER)[0]


def _on_cluster(deployment: Deployment, script: Transcript, figures: Figures) -> None:
    with script.step(f"the scheduler on a Spark cluster of {WORKERS} workers", deployment.progress) as found:
        scheduler = _up(deployment, SPARK_MASTER=MASTER_URL)
        figures.send(BATCH)
        found.append(figures.await_exact(scheduler, within_s=SPARK_S))
        application = _await_workers(deployment, WORKERS)
        found.append(f"{application['id']} has {application['cores']} cores, {_await_tasks(deployment)}")


def _more_workers(deployment: Deployment, script: Transcript) -> None:
    with script.step(f"Spark workers {WORKERS} → {WORKERS + 1}", deployment.progress) as found:
        deployment.scale(WORKER, WORKERS + 1)
        _await_workers(deployment, WORKERS + 1)
        found.append(f"{WORKERS + 1} workers are ALIVE, {_await_tasks(deployment)}")


def _secrets(deployment: Deployment, script: Transcript) -> None:
    with script.step("no secret is in the containers of the Spark cluster") as found:
        secrets = deployment.secrets()
        # The scheduler needs one of them: that it is found there shows that the search finds what there is.
        [own] = _exposed(deployment.words_of(_scheduler(deployment)), secrets)
        if own != "MYQUEUE_CLUSTER_SECRET":
            raise StageFailed(f"the scheduler knows {own}")
        processes = 0
        for one in (*deployment.containers(MASTER), *deployment.containers(WORKER)):
            words = deployment.words_of(one)
            if exposed := _exposed(words, secrets):
                raise StageFailed(f"{', '.join(exposed)} can be read in {one.name}")
            for what in (EXECUTOR, PYTHON_WORKERS) if one.service == WORKER else ():
                if not any(what in each for each in words.values()):
                    raise StageFailed(f"{one.name} has no {what} among its processes: {list(words.values())}")
            processes += len(words)
        found.append(f"{len(secrets)} secrets looked for in {processes} processes, executors among them")


def _exposed(words: Mapping[int, str], secrets: Mapping[str, str]) -> list[str]:
    return [name for name, secret in secrets.items() if any(secret in each for each in words.values())]


def _killed_worker(deployment: Deployment, script: Transcript, figures: Figures) -> None:
    scheduler, victim = _scheduler(deployment), deployment.containers(WORKER)[0]
    with script.step(f"docker kill {victim.name} during a run") as found:
        for _ in range(ATTEMPTS):
            run_id = figures.await_long_run(scheduler, within_s=RUN_S)
            deployment.engine.run("kill", victim.id)
            killed_ms = time.time() * 1000
            exact = figures.await_exact(scheduler, within_s=RUN_S)
            run = figures.runs_of(scheduler, COUNTS, run_id - 1)[0]
            if run["outcome"] != "succeeded":
                raise StageFailed(f"the run that was interrupted should succeed: {run}")
            if run["ended_at"] >= killed_ms:
                break
            deployment.scale(WORKER, WORKERS + 1)  # the run was over: once more
            _await_workers(deployment, WORKERS + 1)
        else:
            raise StageFailed(f"no kill of {ATTEMPTS} was in the middle of a run; the last at {killed_ms:.0f}: {run}")
        found.append(exact)
        found.append(f"the run of {run['rows']} messages ended {(run['ended_at'] - killed_ms) / 1000:.1f} s after it")
        _await_workers(deployment, WORKERS)
        figures.send(BATCH)
        found.append(f"with {WORKERS} workers {figures.await_exact(scheduler, within_s=RUN_S)}")


def _killed_master(deployment: Deployment, script: Transcript, figures: Figures) -> None:
    [victim] = deployment.containers(MASTER)
    with script.step(f"kill -9 in {victim.name}") as found:
        before = _await_workers(deployment, WORKERS)["id"]
        deployment.kill_inside(victim)
        deployment.await_return(victim, within_s=RETURN_S)
        after = _await_workers(deployment, WORKERS)["id"]
        if after != before:
            raise StageFailed(f"{before} was replaced by {after}")
        found.append(f"back by its restart policy, and still has {after}")
        figures.send(BATCH)
        found.append(figures.await_exact(_scheduler(deployment), within_s=RUN_S))


def _await_workers(deployment: Deployment, count: int) -> dict[str, Any]:
    """The scheduler's application, which has an executor on each of that many live workers."""

    def look() -> dict[str, Any] | None:
        [master] = deployment.containers(MASTER)
        done = deployment.engine.ask("exec", master.id, "python", "-c", ASK_MASTER)
        page = json.loads(done.stdout) if done.returncode == 0 else {"workers": [], "activeapps": []}
        alive = [worker for worker in page["workers"] if worker["state"] == "ALIVE"]
        found = [each for each in page["activeapps"] if each["name"] == APPLICATION and each["state"] == "RUNNING"]
        is_spread = len(alive) == count and all(worker["coresused"] == 1 for worker in alive)
        return found[0] if is_spread and len(found) == 1 else None

    what = f"the master has {count} live workers, each with an executor of {APPLICATION!r}"
    return until(look, within_s=RETURN_S, what=what, pause_s=LOOK_S)


def _await_tasks(deployment: Deployment) -> str:
    """Executors in every worker's container have run tasks, by their logs."""

    def look() -> dict[str, int] | None:
        workers = deployment.containers(WORKER)
        done = {one.name: int(deployment.engine.run("exec", one.id, "sh", "-c", TASKS_DONE)) for one in workers}
        return done if all(done.values()) else None

    done = until(look, within_s=RUN_S, what="every worker has run tasks", pause_s=LOOK_S)
    return ", ".join(f"{name} ran {count} tasks" for name, count in done.items())
