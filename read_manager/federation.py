"""Federation: the metrics of all processes of the cluster in one answer, so that Prometheus needs one address.

Each sample gets the role and the name of its process. Metrics of the cluster as a whole, which the active write manager
has, get neither: they go on when another one takes over. `myqueue_up` says which processes answered.
"""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from prometheus_client import CONTENT_TYPE_LATEST

from myqueue.protocol import routes
from myqueue.protocol.errors import RouteNotFound, Unavailable
from myqueue.protocol.internal import WRITE_MANAGER_STATUS, ScrapeTarget
from myqueue.protocol.models import Nothing
from read_manager.write_manager_client import AsyncWriteManagerClient
from service.active_manager import Result, status_in
from service.async_calls import AsyncCaller
from service.calls import NoAnswer
from service.http_messages import HttpRequest, HttpResponse
from service.router import Router

TIMEOUT_S = 2.0  # of each process
TARGETS_TIMEOUT_S = 1.0
KEPT_S = 1.0  # an answer serves everyone who asks within this time: a scrape costs the cluster a request a process
CLUSTER_PREFIXES = ("kafka_", "myqueue_cluster_")
OK = 200


@dataclass(frozen=True, slots=True)
class Exposition:
    """The metrics of one process; None: it did not answer."""

    role: str
    process: str
    text: str | None

    @property
    def labels(self) -> str:
        name = self.process.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'role="{self.role}",process="{name}"'


@dataclass(slots=True)
class _Family:
    head: list[str]  # HELP and TYPE
    samples: list[str] = field(default_factory=list)


def merge(expositions: Sequence[Exposition]) -> bytes:
    """Samples of a family stand together, as the format demands. A family of the cluster is taken from the first
    process that has it."""
    families: dict[str, _Family] = {}
    for exposition in expositions:
        if exposition.text is None:
            continue
        for name, family in _families(exposition.text.split("\n")):
            is_of_cluster = name.startswith(CLUSTER_PREFIXES)
            known = families.get(name)
            if known is None:
                known = families[name] = _Family(family.head)
            elif is_of_cluster:
                continue
            labels = exposition.labels
            known.samples += family.samples if is_of_cluster else [_labelled(line, labels) for line in family.samples]
    lines = ["# HELP myqueue_up 1 if the process has answered with its metrics", "# TYPE myqueue_up gauge"]
    lines += [f"myqueue_up{{{each.labels}}} {float(each.text is not None)}" for each in expositions]
    for family in families.values():
        lines += family.head
        lines += family.samples
    return ("\n".join(lines) + "\n").encode()


def _families(lines: Iterable[str]) -> Iterable[tuple[str, _Family]]:
    """Each begins with its HELP, as prometheus_client writes it."""
    name, family = "", _Family([])
    for line in lines:
        if line.startswith("# HELP "):
            if family.samples:
                yield name, family
            name, family = line.split(" ", 3)[2], _Family([line])
        elif line.startswith("#"):
            family.head.append(line)
        elif line:
            family.samples.append(line)
    if family.samples:
        yield name, family


def _labelled(sample: str, labels: str) -> str:
    brace, space = sample.find("{"), sample.find(" ")
    if 0 <= brace < space:
        return f"{sample[: brace + 1]}{labels},{sample[brace + 1 :]}"
    return f"{sample[:space]}{{{labels}}}{sample[space:]}"


class Federation:
    def __init__(
        self,
        caller: AsyncCaller,
        write_manager: AsyncWriteManagerClient,
        write_manager_urls: Sequence[str],
        own: ScrapeTarget,
    ) -> None:
        """`own` is this process, which the write manager may not know yet."""
        self._caller = caller
        self._write_manager = write_manager
        self._write_manager_urls = write_manager_urls
        self._own = own
        self._targets: Sequence[ScrapeTarget] = ()  # as last known: they are asked also while no write manager answers
        self._names: dict[str, str] = {}  # of write managers, by address, as last known
        self._kept: tuple[bytes, float] | None = None
        self._collecting: asyncio.Task[bytes] | None = None

    def add_routes(self, router: Router) -> None:
        router.add(routes.CLUSTER_METRICS, self.metrics, quiet=True)

    async def metrics(self, request: HttpRequest) -> HttpResponse:
        request.parse_query(Nothing)
        return HttpResponse(OK, [("content-type", CONTENT_TYPE_LATEST)], await self._collected())

    async def _collected(self) -> bytes:
        now_s = asyncio.get_running_loop().time()
        if self._kept is not None and now_s - self._kept[1] < KEPT_S:
            return self._kept[0]
        if self._collecting is None or self._collecting.done():
            self._collecting = asyncio.create_task(self._collect(now_s))
        return await asyncio.shield(self._collecting)

    async def _collect(self, now_s: float) -> bytes:
        write_managers, others = await asyncio.gather(self._ask_write_managers(), self._ask_others())
        body = await asyncio.to_thread(merge, [*write_managers, *others])
        self._kept = body, now_s
        return body

    async def _ask_others(self) -> list[Exposition]:
        # `myqueue_up` shows that no write manager answers; one up to 0.11 does not know the question.
        with suppress(Unavailable, RouteNotFound):
            self._targets = await self._write_manager.scrape_targets(TARGETS_TIMEOUT_S)
        is_known = any(target["process"] == self._own["process"] for target in self._targets)
        targets = self._targets if is_known else [*self._targets, self._own]
        return list(await asyncio.gather(*map(self._ask, targets)))

    async def _ask(self, target: ScrapeTarget) -> Exposition:
        return Exposition(target["role"], target["process"], await self._text(target["endpoint"]))

    async def _ask_write_managers(self) -> list[Exposition]:
        """The active one first: what it says of the cluster counts, even if another one does not know that it is not
        active any more."""
        asked = await asyncio.gather(*map(self._ask_write_manager, self._write_manager_urls))
        return [exposition for exposition, _ in sorted(asked, key=lambda each: -each[1])]

    async def _ask_write_manager(self, url: str) -> tuple[Exposition, int]:
        """And its epoch, 0 unless it is active."""
        result, text = await asyncio.gather(self._call(url + WRITE_MANAGER_STATUS.path), self._text(url))
        status = status_in(result)
        if status is not None and status.name is not None:
            self._names[url] = status.name
        place = self._write_manager_urls.index(url) + 1
        exposition = Exposition("write_manager", self._names.get(url, f"write-manager-{place}"), text)
        return exposition, status.epoch if status is not None and status.state == "active" else 0

    async def _text(self, endpoint: str) -> str | None:
        result = await self._call(endpoint + routes.METRICS.path)
        return None if isinstance(result, NoAnswer) or result.status != OK else result.body.decode()

    async def _call(self, url: str) -> Result:
        try:
            return await self._caller.call("GET", url, timeout_s=TIMEOUT_S)
        except NoAnswer as error:
            return error
