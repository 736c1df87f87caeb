"""Base images made from this machine's own files."""

import io
import subprocess
import tarfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.compose.root_files import RootFiles, loaded, place
from tests.compose.stand_ins import index_settings

NAMES = st.sampled_from(["bin", "lib", "lib64", "usr", "etc", "x", "libc.so.6"])


def test_place() -> None:
    assert place("/bin/sh") == "usr/bin/sh"
    assert place("/lib/x/libc.so.6") == place("/usr/lib/x/libc.so.6") == "usr/lib/x/libc.so.6"
    assert place("/lib/x/../y/z.so") == "usr/lib/y/z.so"
    assert place("/etc/passwd") == "etc/passwd"


@given(st.lists(NAMES, min_size=1))
def test_a_place_is_kept(parts: list[str]) -> None:
    once = place("/" + "/".join(parts))
    assert place("/" + once) == once


def test_loaded() -> None:
    output = (
        "\tlinux-vdso.so.1 (0x00007ffd)\n"
        "\tlibz.so.1 => /lib/x86_64-linux-gnu/libz.so.1 (0x00007f01)\n"
        "\tlibodd.so.3 => not found\n"
        "\t/lib64/ld-linux-x86-64.so.2 (0x00007f02)\n"
        "\tstatically linked\n"
    )
    assert loaded(output) == ["/lib/x86_64-linux-gnu/libz.so.1", "/lib64/ld-linux-x86-64.so.2"]


def test_it_is_a_root_in_which_programs_run(tmp_path: Path) -> None:
    """Without being root: by the loader that was copied along, with the path of the libraries."""
    root = RootFiles()
    root.programs(["no-such-program"], needed=["cat"])
    root.text("/etc/greeting", "hello")
    stream = io.BytesIO()
    root.write(stream)
    stream.seek(0)
    with tarfile.open(fileobj=stream) as tar:
        names = tar.getnames()
        assert len(names) == len(set(names))
        tar.extractall(tmp_path, filter="data", members=[m for m in tar if not m.issym()])
    assert "usr/bin/no-such-program" not in names
    loader = next(tmp_path.rglob("ld-linux*"))
    folders = ":".join({str(path.parent) for path in tmp_path.rglob("lib*.so*")})
    command: list[str | Path] = [
        loader,
        "--library-path",
        folders,
        tmp_path / "usr" / "bin" / "cat",
        tmp_path / "etc" / "greeting",
    ]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "hello"


def test_a_tree_with_links_and_without_what_is_left_out(tmp_path: Path) -> None:
    for name in ("kept/a.txt", "left/b.txt"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(name)
    (tmp_path / "kept" / "link").symlink_to("a.txt")
    root = RootFiles()
    root.tree(tmp_path, "/srv/x", lambda path: path.name == "left")
    mine = {path: entry for path, entry in root.entries.items() if path.startswith("srv/")}
    assert sorted(mine) == ["srv/x/kept", "srv/x/kept/a.txt", "srv/x/kept/link"]
    assert mine["srv/x/kept/link"].link == "a.txt"


def test_only_indexes_that_containers_can_reach_are_handed_on() -> None:
    own = "index" + "-url"  # in one word it would look like an address of an index
    more = f"extra-{own}"
    near, far = "file:///srv/packages", "https://packages.example/all"
    assert index_settings(f"global.{more}='{near} {far}'\n:env:.{own}='{far}'\nglobal.timeout='5'\n") == [
        f"{more} = {far}",
        f"{own} = {far}",
    ]
    assert index_settings(f"global.find-links='/srv/wheels'\nglobal.{own}='{near}'\n") == []
