"""nginx starts in a container from its environment, or says which setting is wrong."""

import resource
import stat
import subprocess
from pathlib import Path

import pytest

from stack.binaries import find_nginx
from stack.config import DEFAULT_MAX_CLIENT_CONNECTIONS
from stack.nginx import MEMORY_BYTES, SOURCE
from tests.integration.balanced_site import SECRET


def container_start(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    program = find_nginx(use_system=False).program
    return subprocess.run(
        ["/bin/sh", SOURCE / "container" / "start.sh", "-t"],
        env={"PATH": f"{program.parent}:/usr/bin:/bin", "MYQUEUE_NGINX_DIR": str(folder), **environment},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES)),
    )


def test_the_configuration_for_containers(tmp_path: Path) -> None:
    """Their names need not exist yet when nginx starts."""
    done = container_start(tmp_path, MYQUEUE_CLUSTER_SECRET=SECRET)
    assert done.returncode == 0, done.stderr
    assert "warn" not in done.stderr
    assert stat.S_IMODE((tmp_path / "site-secret.conf").stat().st_mode) == 0o600
    assert "127.0.0.11" in (tmp_path / "site-resolver.conf").read_text()
    assert f"client_addresses {DEFAULT_MAX_CLIENT_CONNECTIONS};" in (tmp_path / "site-limits.conf").read_text()
    again = container_start(
        tmp_path,
        MYQUEUE_CLUSTER_SECRET=SECRET,
        MYQUEUE_RESOLVER="127.0.0.1:5353 [::1]",
        MYQUEUE_MAX_CLIENT_CONNECTIONS="6144",
    )
    assert again.returncode == 0, again.stderr
    assert "client_addresses 6144;" in (tmp_path / "site-limits.conf").read_text()


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({}, "MYQUEUE_CLUSTER_SECRET"),
        ({"MYQUEUE_CLUSTER_SECRET": 'x"; }'}, "MYQUEUE_CLUSTER_SECRET"),
        ({"MYQUEUE_CLUSTER_SECRET": SECRET, "MYQUEUE_RESOLVER": "a;b"}, "MYQUEUE_RESOLVER"),
        *(
            (
                {"MYQUEUE_CLUSTER_SECRET": SECRET, "MYQUEUE_MAX_CLIENT_CONNECTIONS": number},
                "MYQUEUE_MAX_CLIENT_CONNECTIONS",
            )
            for number in ("0", "6145", "-1", "1; }", "99999999999999999999")
        ),
    ],
)
def test_what_a_container_cannot_start_with(tmp_path: Path, environment: dict[str, str], named: str) -> None:
    done = container_start(tmp_path, **environment)
    assert done.returncode == 2
    assert done.stderr.startswith(f"start.sh: {named} ")
    assert not (tmp_path / "nginx.conf").exists()
