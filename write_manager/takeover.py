"""When a standby takes the lease of the active write manager, and what it has to wait for then. No IO, no clock.

The holder counts `renewals` up. A standby takes over when the row was the same for `takeover_s`, by its own clock and
on a connection that worked for all of that time: while PostgreSQL is away nobody can renew, and nobody takes over.
"""

import math
from dataclasses import dataclass

from db.manager_lease import LeaseLook, LeaseRecord

# For how much of `takeover_s` a renewal allows answers that only memory backs.
VERIFIED_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class WatchedLease:
    record: LeaseRecord
    since_s: float  # of the answer that first had it; every later one had the same


def watch(before: WatchedLease | None, record: LeaseRecord, answered_s: float) -> WatchedLease:
    """`before` is None after a look that failed."""
    return before if before is not None and before.record == record else WatchedLease(record, answered_s)


def silence_to_take_over(
    watched: WatchedLease, look: LeaseLook, *, name: str, sent_s: float, takeover_s: float
) -> float | None:
    """How long the holder is known not to have renewed, if its lease is to be taken now; else None.

    At once if the holder has released it, which it does after its last answer. At once, too, if the holder has this
    process's own name and no session at the server: it was this process before its restart. A namesake that lives has
    a session, and is waited for as any other holder. Never from a server without a standby: nothing could confirm the
    epoch, and it may be a primary that was replaced.
    """
    if not look.has_standby:
        return None
    if look.record.released:
        return math.inf
    if look.record.holder == name and not look.namesake_lives:
        return 0.0
    silent_s = sent_s - watched.since_s  # from the first answer to the last question: no less than this
    return silent_s if silent_s >= takeover_s else None


def counts_as_sent_s(sent_s: float, confirmed_s: float, *, verified_for_s: float) -> float:
    """When a renewal counts as sent: it allows answers that only memory backs for `verified_for_s` after that.

    A standby of PostgreSQL got what was sent at `confirmed_s`, so the server had not been replaced by then. On another
    one a successor watches the lease for all of the takeover's time, which is at least twice `verified_for_s`.
    """
    return min(sent_s, confirmed_s + verified_for_s)


def lease_grace_s(silent_s: float, *, lease_s: float, takeover_s: float) -> float:
    """How long after an activation no lease of a consumer is given out: members may hold those of the predecessor.

    Its last renewal was `silent_s` before the takeover or earlier. It gave out leases for VERIFIED_SHARE of
    `takeover_s` after that, and each of them lasts `lease_s`.
    """
    return lease_s + max(0.0, VERIFIED_SHARE * takeover_s - silent_s)
