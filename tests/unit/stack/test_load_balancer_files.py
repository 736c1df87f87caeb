"""The load balancer's own table of errors says the same as the protocol's."""

import re

import annotated_types

from myqueue.protocol.errors import BY_CODE
from stack.config import DEFAULT_MAX_CLIENT_CONNECTIONS, StackConfig
from stack.nginx import FILES, SOURCE

ENTRY = re.compile(r"(\d+): \{error_code: (\d+), message: '([^']*)', retriable: (true|false)\}")


def test_the_errors_of_nginx_are_those_of_the_protocol() -> None:
    entries = ENTRY.findall((SOURCE / "error_responses.js").read_text())
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


def test_nothing_that_changes_is_evaluated_twice() -> None:
    """Directives of the rewrite module evaluate a value once for its length and once for itself: one that has become
    longer in between is a 500."""
    configuration = (SOURCE / "nginx.conf").read_text()
    changing = re.findall(r"js_set (\$\w+) \S+ nocache;", configuration)
    assert "$read_pool" in changing
    values = re.findall(r"^\s*(?:set \$\w+|return|rewrite|if) (.*)", configuration, re.MULTILINE)
    assert len(values) > 10
    assert [value for value in values if any(name in value for name in changing)] == []


def test_one_machine_gets_every_script() -> None:
    assert set(FILES) == {"nginx.conf", *(path.name for path in SOURCE.glob("*.js"))}


def test_a_worker_has_connections_for_one_greedy_address_and_all_others() -> None:
    """A request has two connections; what may be set is the same on one machine and in containers."""
    field = StackConfig.model_fields["max_client_connections"]
    [most] = [bound.le for bound in field.metadata if isinstance(bound, annotated_types.Le)]
    assert f'"$max_connections" -gt {most} ' in (SOURCE / "container/start.sh").read_text()
    assert (
        f"MYQUEUE_MAX_CLIENT_CONNECTIONS:-{DEFAULT_MAX_CLIENT_CONNECTIONS}}}"
        in (SOURCE / "container/start.sh").read_text()
    )
    configuration = (SOURCE / "nginx.conf").read_text()

    def number(directive: str) -> int:
        [found] = re.findall(rf"^\s*{directive} (\d+);", configuration, re.MULTILINE)
        return int(found)

    assert number("worker_connections") >= 2 * int(str(most)) + 4096
    assert number("worker_rlimit_nofile") > number("worker_connections")
