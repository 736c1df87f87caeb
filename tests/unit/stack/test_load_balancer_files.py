"""The load balancer's own table of errors says the same as the protocol's."""

import re

from myqueue.protocol.errors import BY_CODE
from stack.nginx import FILES, SOURCE

ENTRY = re.compile(r"(\d+): \{error_code: (\d+), message: '([^']*)', retriable: (true|false)\}")


def test_the_errors_of_nginx_are_those_of_the_protocol() -> None:
    entries = ENTRY.findall((SOURCE / "failures.js").read_text())
    assert len(entries) >= 10
    for status, code, message, retriable in entries:
        error = BY_CODE[int(code)]
        assert (error.http_status, error.default_message) == (int(status), message)
        assert error.retriable == (retriable == "true")


def test_no_worker_affinity() -> None:
    """With it this build of nginx eats all memory, even when it only tests its configuration."""
    paths = [path for path in SOURCE.rglob("*") if path.is_file()]
    assert len(paths) > len(FILES)
    for path in paths:
        assert "worker_affinity=" not in path.read_text()


def test_one_machine_gets_every_script() -> None:
    assert set(FILES) == {"nginx.conf", *(path.name for path in SOURCE.glob("*.js"))}
