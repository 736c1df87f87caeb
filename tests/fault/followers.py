"""Everything that follows the active write manager, at work while a test breaks something."""

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import requests

from myqueue.protocol import internal
from myqueue.protocol.errors import MyQueueError
from myqueue.transport import RetryPolicy
from spark.config import Access
from spark.stats_client import StatsClient
from stack.config import StackError
from tests.calls import Calls, token_of
from tests.cluster import BROKERS, READ_MANAGERS, Cluster
from tests.fault.library_clients import LibraryClients
from tests.fault.request_loops import RequestLoops, Send
from tests.waiting import let_pass, until
from tests.workload import Recorder, reason

PAUSE_S = 0.05
TOPIC_EVERY = 10  # registrations
JOB = "consumer_lag"
JOB_DEADLINE_S = 60.0  # a write manager may need 20 s to start on a machine that is very busy
NEVER = (0, 404, 500)  # statuses; 0: no answer


class Registrar:
    """Registers consumers and makes topics under names of its own, each repeated until it is acknowledged."""

    def __init__(self, url: str, topic: str, recorder: Recorder) -> None:
        self._url = url
        self._topic = topic
        self._recorder = recorder
        self.consumers: dict[str, int] = {}
        self.topics: list[str] = []
        self.statuses: Counter[int] = Counter()

    def run(self, stopping: threading.Event) -> None:
        with requests.Session() as session:
            calls = Calls(self._url, session)
            for number in itertools.count():
                self._register(calls, f"reader-{number}", stopping)
                if number % TOPIC_EVERY == 0:
                    self._make_topic(session, f"{self._topic}-{number}", stopping)
                if stopping.wait(PAUSE_S):
                    return

    def _register(self, calls: Calls, name: str, stopping: threading.Event) -> None:
        answer = self._repeat(lambda: calls.register_consumer(self._topic, name=name), name, stopping)
        if answer is not None:
            self.consumers[name] = answer.json()["consumer_id"]
            self._recorder.write("register", "ok", name, self.consumers[name])

    def _make_topic(self, session: requests.Session, name: str, stopping: threading.Event) -> None:
        url = f"{self._url}/v1/topics/{name}"
        if self._repeat(lambda: session.put(url, json={"partitions": 1}, timeout=15), name, stopping) is not None:
            self.topics.append(name)

    def _repeat(
        self, send: Callable[[], requests.Response], name: str, stopping: threading.Event
    ) -> requests.Response | None:
        while not stopping.is_set():
            answer = None
            try:
                answer = send()
            except requests.RequestException:
                self.statuses[0] += 1
            else:
                self.statuses[answer.status_code] += 1
                if answer.ok:
                    return answer
            self._recorder.write("register", "info", name, None, why=reason(answer))
            let_pass(PAUSE_S)
        return None

    def assert_nothing_lost(self) -> None:
        with requests.Session() as session:
            calls = Calls(self._url, session)
            for name, consumer_id in self.consumers.items():
                again = calls.register_consumer(self._topic, name=name)
                assert (again.status_code, again.json()["consumer_id"]) == (200, consumer_id), again.text
            last = calls.register_consumer(self._topic)
            assert last.status_code == 201, last.text
            assert last.json()["consumer_id"] > max(self.consumers.values())
            listed = calls.get("/topics", token_of(last)).json()["topics"]
        assert set(self.topics) - set(listed) == set(), "lost topics"


class JobRuns:
    """Runs of a job as Spark begins, renews and ends them."""

    def __init__(self, cluster: Cluster) -> None:
        access = Access(cluster.url, tuple(cluster.internal_urls), cluster.secret)
        self._stats = StatsClient(access, retry=RetryPolicy(deadline_s=JOB_DEADLINE_S))
        self.ended = 0
        self.errors: list[MyQueueError] = []

    def run(self, stopping: threading.Event) -> None:
        while not stopping.wait(PAUSE_S):
            try:
                run_id = self._stats.begin(JOB, "followers", "manual", None)["run_id"]
                self._stats.renew(run_id, within_s=JOB_DEADLINE_S)
                self._stats.end(run_id, succeeded=True, rows=0, message=None)
                self.ended += 1
            except MyQueueError as error:
                self.errors.append(error)
        self._stats.close()


def reads_of(url: str, topic: str) -> RequestLoops:
    def get(path: str) -> Send:
        return lambda session: session.get(url + path, timeout=15)

    paths = ("/topics", f"/topics/{topic}/partitions", f"/v1/routing/{topic}", "/v1/cluster")
    return RequestLoops({path: get(path) for path in paths})


class Followers:
    def __init__(self, cluster: Cluster, topic: str, recorder: Recorder) -> None:
        """`topic` exists; a second one is made for the library."""
        self._cluster = cluster
        with requests.Session() as session:
            library = Calls(cluster.url, session).topic(f"{topic}-library", partitions=3)
        self.library = LibraryClients(cluster.url, library, commits=True)
        self.registrar = Registrar(cluster.url, topic, recorder)
        self.jobs = JobRuns(cluster)
        self.reads = reads_of(cluster.url, topic)

    @contextmanager
    def running(self) -> Iterator[None]:
        stopping = threading.Event()
        threads = [threading.Thread(target=each.run, args=(stopping,)) for each in (self.registrar, self.jobs)]
        with ExitStack() as stack:
            stack.enter_context(self.reads.running())
            stack.enter_context(self.library.running())
            for thread in threads:
                thread.start()
            try:
                self.await_progress(within_s=30)
                yield
                self.await_progress(within_s=30)
                self.library.assert_nothing_lost()
            finally:
                stopping.set()
                for thread in threads:
                    thread.join(60)

    def await_progress(self, *, within_s: float) -> None:
        """All of them work, those that tell the active write manager that they are there as well."""
        sent, read, ended = len(self.library.sent), len(self.library.read), self.jobs.ended
        registered = len(self.registrar.consumers)

        def is_made() -> bool:
            return (
                len(self.library.sent) > sent + 20
                and len(self.library.read) > read + 20
                and self.jobs.ended > ended + 1
                and len(self.registrar.consumers) > registered + 5
            )

        until(is_made, within_s=within_s, what="the library reads and commits, jobs run, consumers are registered")
        until(self._are_known, within_s=within_s, what="brokers and read managers are known to the active one")

    def _are_known(self) -> bool:
        try:
            active = self._cluster.local.internal_url
            managers = self._cluster.ask(active + internal.MANAGER_ADDRESSES.path).json().get("managers", ())
            brokers = self._cluster.ask(active + internal.DATA_ADDRESSES.path).json().get("brokers", ())
        except (requests.RequestException, StackError):
            return False
        return len(managers) == len(READ_MANAGERS) and len(brokers) == len(BROKERS)

    def assert_served(self) -> None:
        """After they have ended."""
        assert self.jobs.errors == [], list(map(repr, self.jobs.errors))
        assert not {status for status in NEVER if self.registrar.statuses[status]}, self.registrar.statuses
        for path in self.reads.names:
            failed = [each for each in self.reads.all(path) if each.status != 200]
            assert failed == [], (path, failed[:3])
        self.registrar.assert_nothing_lost()
