"""Base images for machines that cannot pull any: python, nginx and postgres, made from what is installed here.

They have the paths, users and variables of the official images that the project relies on, and nothing else of them.
They test the project's own Dockerfile, compose file and configuration, not the official images.
"""

import hashlib
import os
import ssl
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from stack.binaries import NGINX_PACKAGE, POSTGRES_INSTALL, POSTGRES_PACKAGE, find_nginx, find_postgres
from tests.compose import root_files
from tests.compose.engine import Engine
from tests.compose.failure import CannotRun
from tests.compose.root_files import RootFiles

LABEL = "myqueue.stand-in"
PREFIX = "myqueue-stand-in"

CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
NEEDED = ("sh", "bash", "cat", "cp", "mv", "rm", "ln", "mkdir", "chmod", "chown", "sed", "grep", "env", "id", "sleep")
USUAL = (
    *("[", "awk", "base64", "basename", "cut", "date", "dd", "df", "dirname", "du", "echo", "expr", "false", "find"),
    *("getconf", "getent", "groupadd", "gzip", "head", "hostname", "install", "kill", "ls", "md5sum", "mktemp"),
    *("nice", "nohup", "nproc", "od", "pgrep", "printf", "ps", "readlink", "realpath", "rmdir", "seq", "setpriv"),
    *("sha256sum", "sort", "stat", "sync", "tail", "tar", "tee", "test", "timeout", "touch", "tr", "true", "uname"),
    *("uniq", "useradd", "wc", "whoami", "xargs"),
)
LIBRARIES = (  # what wheels may expect of every Linux, and name look-ups
    *("libc.so.6", "libm.so.6", "libdl.so.2", "librt.so.1", "libpthread.so.0", "libutil.so.1", "libresolv.so.2"),
    *("libstdc++.so.6", "libgcc_s.so.1", "libz.so.1", "libnss_dns.so.2", "libnss_files.so.2", "libcrypt.so.1"),
)
USERS = (
    ("root", 0, "/root"),
    ("daemon", 1, "/"),
    ("nobody", 65534, "/"),
)
LEFT_OUT = {  # of the standard library
    *("site-packages", "test", "tests", "idlelib", "tkinter", "turtledemo", "lib2to3"),
    f"config-3.11-{sysconfig.get_config_var('MULTIARCH')}",
}
# The packages that the Dockerfile installs into an official image are in the stand-in from the beginning.
APT_GET = """#!/bin/sh
for word in "$@"; do
    case $word in
    -* | update | install) ;;
    python3) command -v python3 >/dev/null || exit 100 ;;
    python3-venv) python3 -c 'import ensurepip, venv' || exit 100 ;;
    etcd-server) command -v etcd >/dev/null || exit 100 ;;
    *)
        echo "apt-get: a stand-in has no $word" >&2
        exit 100
        ;;
    esac
done
"""
WHERE_FROM = ("-url", "trusted-host")  # how settings of pip end that say where packages come from


@dataclass(frozen=True)
class StandIn:
    image: str  # what it stands in for
    variable: str  # by which compose uses another one
    files: Callable[[], RootFiles]
    changes: tuple[str, ...]  # as in a Dockerfile

    @property
    def own_name(self) -> str:
        return f"{PREFIX}/{self.image}"


def _base(*users: tuple[str, int, str]) -> RootFiles:
    root = RootFiles()
    root.programs(USUAL, NEEDED)
    root.libraries(LIBRARIES)
    everyone = (*USERS, *users)
    root.text("/etc/passwd", "".join(f"{name}:x:{uid}:{uid}::{home}:/bin/sh\n" for name, uid, home in everyone))
    root.text("/etc/group", "".join(f"{name}:x:{uid}:\n" for name, uid, _ in everyone))
    root.text("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n")
    root.text("/etc/os-release", 'PRETTY_NAME="a stand-in for a base image"\nID=stand-in\n')
    for folder in ("/usr/lib/locale/C.utf8", "/usr/share/zoneinfo"):
        if Path(folder).is_dir():
            root.tree(Path(folder), folder)
    return root


def _python() -> RootFiles:
    root = _base()
    _add_python(root)
    return root


def _add_python(root: RootFiles) -> None:
    if sys.version_info[:2] != (3, 11):
        raise CannotRun(f"stand-ins need Python 3.11, this is {sys.version.split()[0]}: make PYTHON=python3.11 …")
    prefix = Path(sys.base_prefix)
    library = prefix / "lib" / "python3.11"
    if not any((library / "ensurepip" / "_bundled").glob("pip-*.whl")):
        raise CannotRun(f"the Python in {prefix} has no ensurepip, so images could not install packages with it")
    root.tree(library, "/usr/local/lib/python3.11", lambda path: path.name in LEFT_OUT)
    shared = prefix / "lib" / "libpython3.11.so.1.0"
    if shared.exists():
        root.file(shared, "/usr/lib/libpython3.11.so.1.0")
    root.file(Path(sys.executable).resolve(), "/usr/local/bin/python3.11", mode=0o755)
    for name in ("python", "python3"):
        root.link(f"/usr/local/bin/{name}", "python3.11")
    site = "/usr/local/lib/python3.11/site-packages"
    packages = Path(sys.prefix) / "lib" / "python3.11" / "site-packages"
    root.folder(site)
    root.tree(packages / "pip", f"{site}/pip")
    root.text("/usr/local/bin/pip", '#!/bin/sh\nexec python3.11 -m pip "$@"\n', mode=0o755)
    root.text(CERTIFICATES, _certificates())
    root.text("/etc/pip.conf", _pip_settings())


def _certificates() -> bytes:
    """Whom this machine trusts: packages may come from a registry of its own."""
    paths = ssl.get_default_verify_paths()
    for path in (os.environ.get("SSL_CERT_FILE"), paths.cafile, paths.openssl_cafile, CERTIFICATES):
        if path is not None and Path(path).is_file():
            return Path(path).read_bytes()
    raise CannotRun("found no file of trusted certificates on this machine; name it in SSL_CERT_FILE")


def _pip_settings() -> str:
    """Where this machine takes packages from, as far as a container can reach it."""
    configured = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    return "\n".join(["[global]", f"cert = {CERTIFICATES}", *index_settings(configured), ""])


def index_settings(told_by_pip: str) -> list[str]:
    """Of `pip config list`: the indexes that are addresses, as lines of a pip.conf."""
    found: dict[str, list[str]] = {}
    for line in told_by_pip.splitlines():
        name, _, quoted = line.partition("=")
        key = name.rpartition(".")[2].lower().replace("_", "-")
        if key.endswith(WHERE_FROM):
            values = quoted.strip().strip("'").replace("\\n", " ").split()
            kept = [value for value in values if key == "trusted-host" or value.startswith(("http://", "https://"))]
            found.setdefault(key, []).extend(kept)
    return [f"{key} = {' '.join(dict.fromkeys(values))}" for key, values in found.items() if values]


def _nginx() -> RootFiles:
    root = _base(("nginx", 101, "/nonexistent"))
    root.file(find_nginx(use_system=False).program, "/usr/sbin/nginx", mode=0o755)
    root.folder("/usr/lib/nginx/modules")  # empty: njs is built in
    root.folder("/var/cache/nginx", owner=101)
    return root


def _postgres() -> RootFiles:
    root = _base(("postgres", 999, "/var/lib/postgresql"))
    package = find_postgres(use_system=False, account=None, shelter=None).parent.parent
    # The programs find their libraries by relative paths: the folders keep their places towards each other.
    home = "/usr/lib/postgresql"
    root.tree(package.with_name(f"{POSTGRES_PACKAGE}.libs"), f"{home}/{POSTGRES_PACKAGE}.libs")
    installed = f"{POSTGRES_PACKAGE}/{POSTGRES_INSTALL}"
    root.tree(package / POSTGRES_INSTALL, f"{home}/{installed}", lambda path: path.parts[0] == "include")
    root.link(f"{home}/18", installed)
    root.folder("/var/lib/postgresql", mode=0o1777, owner=999)
    root.folder("/run/postgresql", mode=0o3777, owner=999)
    _add_python(root)
    root.programs((), ("etcd",))
    root.text("/usr/bin/apt-get", APT_GET, mode=0o755)
    return root


STAND_INS = (
    StandIn(
        "python:3.11-slim",
        "PYTHON_IMAGE",
        _python,
        (
            "ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin",
            "ENV LANG=C.UTF-8",
            f"ENV SSL_CERT_FILE={CERTIFICATES}",
            'CMD ["python3"]',
        ),
    ),
    StandIn(
        "nginx:1.29",
        "NGINX_IMAGE",
        _nginx,
        ("ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "EXPOSE 80"),
    ),
    StandIn(
        "postgres:18",
        "POSTGRES_IMAGE",
        _postgres,
        (
            "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/lib/postgresql/18/bin",
            "ENV LANG=C.UTF-8",
            f"ENV SSL_CERT_FILE={CERTIFICATES}",
            "ENV PG_MAJOR=18",
            "ENV PGDATA=/var/lib/postgresql/18/docker",
            "VOLUME /var/lib/postgresql",
        ),
    ),
)


def ingredients() -> str:
    """Stands for all that stand-ins are made of; another one means that they are to be made again."""
    parts = [sys.version, version(POSTGRES_PACKAGE), version(NGINX_PACKAGE), _pip_settings()]
    parts += [Path(module).read_text() for module in (__file__, root_files.__file__)]
    digest = hashlib.sha256("\n".join(parts).encode())
    digest.update(_certificates())
    return digest.hexdigest()[:16]


def provide(engine: Engine, say: Callable[[str], None]) -> dict[str, str]:
    """Names of images that are there, by the variable that compose reads; a stand-in never takes an official name."""
    chosen = {}
    mark = ingredients()
    for stand_in in STAND_INS:
        chosen[stand_in.variable] = stand_in.image
        if engine.has(stand_in.image):
            say(f"{stand_in.image}: is here")
        elif (why_not := engine.pull(stand_in.image)) is None:
            say(f"{stand_in.image}: pulled")
        else:
            chosen[stand_in.variable] = stand_in.own_name
            say(f"{stand_in.image}: cannot be pulled ({why_not})")
            if engine.label_of(stand_in.own_name, LABEL) == mark:
                say(f"{stand_in.own_name}: made earlier")
            else:
                engine.load(stand_in.own_name, stand_in.files().write, (*stand_in.changes, f"LABEL {LABEL}={mark}"))
                say(f"{stand_in.own_name}: made from this machine's own files")
    return chosen
