"""Which process reads as a member of a consumer: an identity for leases, and a client id and a host for people."""

import os
import re
import socket
import sys
import uuid
from pathlib import PurePath
from typing import NamedTuple

from myqueue.argument_checks import WrongType, WrongValue
from myqueue.protocol.limits import MAX_CLIENT_NAME_CHARS, MAX_HOST_CHARS

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")  # and what no UTF-8 text can have


class MemberIdentity(NamedTuple):
    member: str  # unique: leases belong to it
    client_id: str
    host: str | None

    def as_json(self) -> dict[str, str]:
        """The fields of a poll."""
        named = {"member": self.member, "client_id": self.client_id}
        return named if self.host is None else named | {"host": self.host}


def new_member(client_id: str | None = None) -> MemberIdentity:
    """Of this process; without a client id, by the name of its script and its process id."""
    if client_id is None:
        client_id = default_client_id(sys.argv[0] if sys.argv else "", os.getpid())
    else:
        _check(client_id)
    host = _CONTROL.sub("", socket.gethostname())[:MAX_HOST_CHARS] or None
    return MemberIdentity(uuid.uuid4().hex, client_id, host)


def default_client_id(script: str, process_id: int) -> str:
    """Such as `billing-4711` for billing.py; a package that is run as a module has the name of its folder."""
    path = PurePath(script)
    stem = path.parent.name if path.name == "__main__.py" else path.stem
    stem = _CONTROL.sub("", stem)
    if stem in ("", "-c", "-"):
        stem = "python"
    number = f"-{process_id}"
    return stem[: MAX_CLIENT_NAME_CHARS - len(number)] + number


def _check(client_id: object) -> None:
    if not isinstance(client_id, str):
        raise WrongType(f"client_id must be a str, not {type(client_id).__name__}")
    if not 1 <= len(client_id) <= MAX_CLIENT_NAME_CHARS or _CONTROL.search(client_id):
        raise WrongValue(f"client_id must be 1 to {MAX_CLIENT_NAME_CHARS} printable characters, not {client_id!r}")
