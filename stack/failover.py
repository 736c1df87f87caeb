"""What to do about a PostgreSQL server, decided from what is seen of all three; no IO.

A crashed or hung server starts again from its own folder: nothing is lost, and there is no rival. Another server
becomes the primary only when the primary's data is gone or damaged, and only after a look at both standbys: a commit
waits for one of them, so the last ones may be on either.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from stack.primary_record import Folder, PrimaryRecord

HUNG_READS = 3
# Several that fail together: the machine is slow, or a person paused all. A restart makes that worse.
HUNG_READS_TOGETHER = 30
MAX_DOUBLINGS = 5  # of what a server is allowed that was killed before
SILENT_START_S = 300.0  # recovery says every 10 s how far it is
DAMAGED_STARTS = 3
PROMOTION_INTERVAL_S = 3600.0


@dataclass(frozen=True, order=True)
class WalPosition:
    timeline: int
    lsn: int


@dataclass(frozen=True)
class Seen:
    """What is seen of one server."""

    folder: Folder
    is_foreign: bool = False  # the data of another database
    is_running: bool = False
    is_stopped: bool = False  # a person keeps it down, or it is not one of the services to run
    failed_reads: int = 0  # in a row, since it was ready
    others_fail: bool = False  # reads of another server fail as well
    hang_kills: int = 0  # of late
    silent_start_s: float = 0.0  # of one that is not ready: since when its log does not move
    damaged_starts: int = 0  # in a row
    cannot_follow: bool = False  # of a standby: the primary does not have the WAL that it lacks
    position: WalPosition | None = None  # of a standby that answers
    is_settled: bool = False  # its receiver has ended and its replay is at the end of the local WAL

    @property
    def is_hung(self) -> bool:
        allowed = HUNG_READS_TOGETHER if self.others_fail else HUNG_READS
        return self.failed_reads >= allowed * self._patience

    @property
    def is_stuck(self) -> bool:
        return self.silent_start_s >= SILENT_START_S * self._patience

    @property
    def _patience(self) -> int:
        """A server that is killed again and again is slow rather than hung."""
        return int(2 ** min(self.hang_kills, MAX_DOUBLINGS))

    @property
    def is_lost(self) -> bool:
        return self.folder == "missing" or self.damaged_starts >= DAMAGED_STARTS


@dataclass(frozen=True)
class PromotionRequest:
    """A person's decision. `anyway`: without what only a standby that cannot be read may have."""

    name: str
    anyway: bool = False


@dataclass(frozen=True)
class Initialise:
    """Make an empty database."""


@dataclass(frozen=True)
class Start:
    """Start, or go on with, the server on its own folder."""


@dataclass(frozen=True)
class Kill:
    """End every process of it; it starts again."""

    reason: str


@dataclass(frozen=True)
class Promote:
    name: str


@dataclass(frozen=True)
class FinishPromotion:
    """One that was decided before, by this runner or an earlier one."""

    name: str


@dataclass(frozen=True)
class Rebuild:
    """Replace its data by a copy of the primary's."""

    reason: str


@dataclass(frozen=True)
class Wait:
    reason: str


@dataclass(frozen=True)
class Refuse:
    """Nothing happens without a person."""

    reason: str


Step = Initialise | Start | Kill | Promote | FinishPromotion | Rebuild | Wait | Refuse


def next_step(
    name: str,
    record: PrimaryRecord | None,
    servers: Mapping[str, Seen],
    *,
    now_s: float,
    request: PromotionRequest | None = None,
) -> Step:
    """`now_s`: seconds since 1970, for the interval between promotions outlives the runner."""
    server = servers[name]
    if server.is_running:
        return _running(server)
    if record is None:
        if any(each.folder != "missing" for each in servers.values()):
            return Refuse("there is data, but no record of which server is the primary")
        return Initialise() if name == min(servers) else Wait("there is no primary yet")
    if server.is_foreign:
        return Refuse(f"its folder has another database than {record.primary}'s; move it away")
    if server.folder == "unreadable":
        return Refuse("its folder cannot be read: see the rights and the disk")
    promotion = record.promotion
    if name == record.primary:
        if promotion is not None and request is None:
            return FinishPromotion(promotion.name)
        if server.is_lost or request is not None:
            return _promotion(name, record, servers, now_s, request)
        if server.folder == "standby":
            return Refuse("the record calls it the primary, but its folder is a standby's")
        return Start()
    if promotion is not None and name == promotion.name:
        if server.folder == "missing":
            return Refuse(f"it was to become the primary, and its data is gone: {_by_hand(name, servers)}")
        return Start()
    if server.is_lost:
        return Rebuild("its data is gone or damaged")
    if server.folder == "primary":
        return Rebuild("its data is a former primary's")
    if server.cannot_follow:
        return Rebuild("the primary does not have the WAL that it lacks")
    return Start()


def _running(server: Seen) -> Step:
    if server.folder == "missing":
        return Kill("its data is gone")
    if server.is_hung:
        return Kill(f"{server.failed_reads} reads in a row failed")
    if server.is_stuck:
        return Kill(f"it is not ready, and its log says nothing for {server.silent_start_s:.0f} s")
    if server.cannot_follow:
        return Kill("the primary does not have the WAL that it lacks")
    return Start()


def _promotion(
    old: str, record: PrimaryRecord, servers: Mapping[str, Seen], now_s: float, request: PromotionRequest | None
) -> Step:
    standbys = {name: server for name, server in servers.items() if name != old}
    # A time in the future is one of a clock that was set back: one that is far away says nothing.
    since_s = None if record.promoted_at is None else abs(now_s - record.promoted_at)
    if request is None and since_s is not None and since_s < PROMOTION_INTERVAL_S:
        return Refuse(
            f"the data of the primary {old} is gone or damaged, and a standby was promoted less than an hour ago: "
            f"something destroys data; look for it, then {_by_hand(old, servers)}"
        )
    anyway = request is not None and request.anyway
    waiting = None
    for name, server in standbys.items():
        if anyway and request is not None and name != request.name:
            continue
        if server.is_foreign or server.folder != "standby" or server.damaged_starts >= DAMAGED_STARTS:
            return Refuse(f"{name} has no standby's data that could be read: {_by_hand(old, servers)}")
        if server.is_stopped:
            return Refuse(
                f"{name} is stopped, and may have what no other server has: start it, or {_by_hand(old, servers)}"
            )
        if server.position is None:
            waiting = Wait(
                f"{name} does not answer, and may have what no other server has; or {_by_hand(old, servers)}"
            )
        elif not server.is_settled:
            waiting = waiting or Wait(f"{name} has not replayed all that it received")
    if waiting is not None:
        return waiting
    positions = {name: server.position for name, server in standbys.items() if server.position is not None}
    best = max(sorted(positions), key=lambda name: positions[name])
    if request is None:
        return Promote(best)
    if request.name not in positions:
        return Refuse(f"{request.name} is not a standby that answers")
    if positions[request.name] < positions[best] and not anyway:
        return Refuse(f"{best} has received more than {request.name}: promote that one")
    return Promote(request.name)


def _by_hand(old: str, servers: Mapping[str, Seen]) -> str:
    names = " or ".join(sorted(name for name in servers if name != old))
    return f"decide yourself with `make promote NAME=...` ({names})"


# PostgreSQL gives most of these no code of their own. A full disk, a taken port, a wrong setting or missing rights are
# not among them: another server on this machine would meet them too. Nor are files outside of the data folder: of the
# programs, or of a library that a setting names.
_DATA_FILE = (
    r"(?:file|directory|from file) \"(?:\./)?(?:PG_VERSION|base|global|pg_(?:commit_ts|dynshmem|logical|multixact|"
    r"notify|replslot|serial|snapshots|stat|stat_tmp|subtrans|tblspc|twophase|wal|xact))(?:/[^\"]*)?\".*"
)
_DAMAGE = re.compile(
    "|".join(
        (
            r"incorrect checksum in control file",
            r"could not (?:locate|find) (?:a valid checkpoint record|required checkpoint record|redo location)",
            r"invalid (?:primary )?checkpoint record",
            r"is not a valid data directory",
            r"required WAL directory .* does not exist",
            rf"could not (?:open|read|access|stat) {_DATA_FILE}: (?:No such file or directory|Input/output error)",
            rf"could not read {_DATA_FILE}: read \d+ of \d+",
            r"could not access status of transaction",
            r"relation mapping file .* contains (?:invalid data|incorrect checksum)",
            r"invalid page in block",
            r"WAL ends before",
            r"replication checkpoint has wrong magic",
        )
    )
)
# Of a standby that has WAL which the primary's timeline does not have.
_DIVERGED = re.compile(
    r"requested timeline \d+ (?:is not a child of this server's history|does not contain minimum recovery point)"
)
_FAILED = re.compile(r"\b(?:PANIC|FATAL): +(.*)")


def damage_in(log: str, folder: Path) -> str | None:
    """The message of a start from the folder that failed because data is damaged; None: for another reason."""
    inside = f'"{folder}/'
    return next((message for message in _fatal(log) if _DAMAGE.search(message.replace(inside, '"'))), None)


def is_diverged(log: str) -> bool:
    """Whether a standby's start failed because its history is not the primary's."""
    return any(_DIVERGED.search(message) for message in _fatal(log))


def _fatal(log: str) -> Iterator[str]:
    for line in log.splitlines():
        found = _FAILED.search(line)
        if found:
            yield found[1]
