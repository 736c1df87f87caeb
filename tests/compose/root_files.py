"""A root file system put together from this machine's own files: programs with the libraries they load, and text.

It is enough for a base image where none can be pulled. Everything is looked up when it is made; nothing of this machine
is written down here.
"""

import io
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from tests.compose.failure import CannotRun

MERGED = ("bin", "sbin", "lib", "lib64")  # links into /usr, as in current distributions
OWN_LIBRARIES = "/usr/lib"  # searched by the loader whatever the distribution
_LOADED = re.compile(r"^\s+(?:\S+ => )?(/\S+) \(0x[0-9a-f]+\)$", re.MULTILINE)
_ELF = b"\x7fELF"


@dataclass(frozen=True)
class Entry:
    """One thing in the image: a copy of a file, a text, a link or a folder, whichever is given."""

    source: Path | None = None
    text: bytes | None = None
    link: str | None = None
    mode: int = 0o755
    owner: int = 0


def place(path: str) -> str:
    """Where a file of a machine lies when /bin, /lib and so on are links into /usr; no `..`, no first slash."""
    parts: list[str] = []
    for part in PurePosixPath(path).parts[1:]:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return "/".join(["usr", *parts] if parts[0] in MERGED else parts)


def loaded(told_by_ldd: str) -> list[str]:
    """The libraries that ldd found, the loader among them."""
    return sorted(set(_LOADED.findall(told_by_ldd)))


class RootFiles:
    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        for name in MERGED:
            self.entries[name] = Entry(link=f"usr/{name}", mode=0o777)
            self.folder(f"/usr/{name}")
        for name in ("/etc", "/proc", "/sys", "/dev", "/run", "/var", "/root"):
            self.folder(name)
        for name in ("/tmp", "/var/tmp"):
            self.folder(name, mode=0o1777)
        self.link("/var/run", "/run")

    def folder(self, target: str, mode: int = 0o755, owner: int = 0) -> None:
        self.entries[place(target)] = Entry(mode=mode, owner=owner)

    def text(self, target: str, text: str | bytes, mode: int = 0o644) -> None:
        data = text.encode() if isinstance(text, str) else text
        self.entries[place(target)] = Entry(text=data, mode=mode)

    def link(self, target: str, to: str) -> None:
        self.entries[place(target)] = Entry(link=to, mode=0o777)

    def file(self, source: Path, target: str, mode: int | None = None) -> None:
        self.entries[place(target)] = Entry(source=source, mode=source.stat().st_mode & 0o777 if mode is None else mode)

    def tree(self, source: Path, target: str, leave: Callable[[Path], bool] = lambda _: False) -> None:
        """A folder with all that is in it and the libraries it needs, but for what is left out."""
        binaries = []
        for folder, folders, files in os.walk(source):
            here = Path(folder)
            folders[:] = sorted(name for name in folders if not leave((here / name).relative_to(source)))
            for name in [*folders, *sorted(files)]:
                path = here / name
                inside = path.relative_to(source)
                if path.is_symlink() and not str(path.readlink()).startswith("/"):
                    self.link(f"{target}/{inside}", str(path.readlink()))
                elif path.is_dir():
                    self.folder(f"{target}/{inside}")
                elif not leave(inside):
                    self.file(path, f"{target}/{inside}")
                    binaries.append(path)
        self._libraries(binaries)

    def programs(self, names: Iterable[str], needed: Iterable[str] = ()) -> None:
        """By name, from the PATH; those that are not needed may be missing."""
        found = []
        for name in {*names, *needed}:
            program = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
            if program is not None:
                self.file(Path(program).resolve(), f"/usr/bin/{name}", mode=0o755)
                found.append(Path(program).resolve())
            elif name in needed:
                raise CannotRun(f"there is no {name} on the PATH of this machine")
        self._libraries(found)

    def libraries(self, names: Iterable[str]) -> None:
        """By name, as the loader knows them: what packages expect of any machine."""
        output = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
        known = {
            parts[0]: parts[-1]
            for line in output.splitlines()
            if (parts := line.split()) and "=>" in parts and "x86-64" in line
        }
        for name in names:
            if name in known:
                self.file(Path(known[name]).resolve(), known[name], mode=0o755)

    def _libraries(self, files: list[Path]) -> None:
        """What these load, as far as it is not here already."""
        binaries = [path for path in files if _is_binary(path)]
        if not binaries:
            return
        # Told on its errors too: a file that loads nothing is one.
        output = subprocess.run(["ldd", *binaries], capture_output=True, text=True, check=False).stdout
        here = {entry.source for entry in self.entries.values()}
        for library in loaded(output):
            source = Path(library).resolve()
            if source not in here:
                is_usual = place(library).startswith(("usr/lib/", "usr/lib64/"))
                self.file(source, library if is_usual else f"{OWN_LIBRARIES}/{source.name}", mode=0o755)

    def write(self, stream: IO[bytes]) -> None:
        """As a tar with every path once and folders before what is in them."""
        for path in list(self.entries):
            for parent in list(PurePosixPath(path).parents)[:-1]:
                self.entries.setdefault(str(parent), Entry())
        with tarfile.open(fileobj=stream, mode="w|") as tar:
            for path, entry in sorted(self.entries.items()):
                info = tarfile.TarInfo(path)
                info.mode, info.uid, info.gid = entry.mode, entry.owner, entry.owner
                if entry.source is not None:
                    found = entry.source.stat()
                    info.size, info.mtime = found.st_size, int(found.st_mtime)  # compiled Python asks for the time
                    with entry.source.open("rb") as file:
                        tar.addfile(info, file)
                elif entry.text is not None:
                    info.size = len(entry.text)
                    tar.addfile(info, io.BytesIO(entry.text))
                elif entry.link is not None:
                    info.type, info.linkname = tarfile.SYMTYPE, entry.link
                    tar.addfile(info)
                else:
                    info.type = tarfile.DIRTYPE
                    tar.addfile(info)


def _is_binary(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == _ELF
