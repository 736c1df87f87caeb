"""The console's files: headers, caching, what is refused, and that nothing they name is missing or elsewhere."""

import asyncio
import gzip
import re
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from myqueue.protocol.errors import RouteNotFound
from read_manager.console_page import ASSET, CONTENT_TYPES, FOLDER, FOREVER, POLICY, UNVERSIONED, Console
from service.http_messages import HttpRequest, HttpResponse
from service.router import _pattern

BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
FIRST_PAGE_BYTES = 150_000
FIRST_PAGE = ("main.js", "overview.js")
CONSOLE = Console()
FILES = sorted(path for path in FOLDER.rglob("*") if path.is_file())
OWN = [path for path in FILES if "vendor" not in path.parts]


def asked(
    handler: Callable[[HttpRequest], Coroutine[Any, Any, HttpResponse]], headers: dict[str, str], **path_values: str
) -> HttpResponse:
    return asyncio.run(handler(HttpRequest("GET", "/", path_values, "", headers, b"", None)))


def asset(name: str, headers: dict[str, str] | None = None, version: str = CONSOLE.version) -> HttpResponse:
    return asked(CONSOLE.answer_asset, headers or {}, version=version, name=name)


def test_a_browser_gets_the_page_under_a_strict_policy() -> None:
    answer = asked(CONSOLE.answer_page, BROWSER)
    headers = dict(answer.headers)
    assert answer.status == 200
    assert headers["content-type"] == "text/html; charset=utf-8"
    assert headers["content-security-policy"] == POLICY
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-cache"
    assert b"{version}" not in answer.joined_body()


def test_the_policy_allows_nothing_inline_and_no_other_host() -> None:
    allowed = {name: value for name, _, value in (directive.partition(" ") for directive in POLICY.split("; "))}
    assert allowed["default-src"] == "'none'"
    assert allowed["script-src"] == allowed["style-src"] == allowed["connect-src"] == "'self'"
    assert allowed["require-trusted-types-for"] == "'script'"
    assert "unsafe" not in POLICY
    assert "*" not in POLICY


@pytest.mark.parametrize("accept", [None, "*/*", "application/json"])
def test_a_program_gets_what_it_got_before_there_was_a_page(accept: str | None) -> None:
    with pytest.raises(RouteNotFound):
        asked(CONSOLE.answer_page, {} if accept is None else {"accept": accept})


@pytest.mark.parametrize("name", CONSOLE.assets)
def test_every_file_has_its_type_and_is_kept_for_good(name: str) -> None:
    answer = asset(name)
    headers = dict(answer.headers)
    assert answer.status == 200
    assert headers["content-type"] == CONTENT_TYPES[Path(name).suffix]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == FOREVER
    assert asset(name, {"if-none-match": headers["etag"]}).status == 304


def test_the_version_of_another_read_manager_is_answered_but_not_kept() -> None:
    answer = asset("main.js", version="another")
    assert answer.status == 200
    assert dict(answer.headers)["cache-control"] == "no-cache"


def test_another_content_is_another_version(tmp_path: Path) -> None:
    for path in FILES:
        (tmp_path / path.name).write_bytes(path.read_bytes())
    assert Console(tmp_path).version == CONSOLE.version
    (tmp_path / "main.js").write_text("// changed")
    assert Console(tmp_path).version != CONSOLE.version


def test_compressed_on_request_under_another_tag() -> None:
    plain, packed = asset("console.css"), asset("console.css", {"accept-encoding": "br, gzip;q=0.8"})
    assert gzip.decompress(packed.joined_body()) == plain.joined_body()
    assert dict(packed.headers)["content-encoding"] == "gzip"
    assert dict(packed.headers)["etag"] != dict(plain.headers)["etag"]
    assert "accept-encoding" in dict(packed.headers)["vary"]
    refused = asset("console.css", {"accept-encoding": "gzip;q=0"})
    assert refused.joined_body() == plain.joined_body()


def test_a_file_that_is_not_there_is_a_page_that_leads_home() -> None:
    answer = asset("missing.js", BROWSER)
    assert answer.status == 404
    assert b'href="/"' in answer.joined_body()
    assert dict(answer.headers)["content-security-policy"] == POLICY
    with pytest.raises(RouteNotFound):
        asset("missing.js")


@pytest.mark.parametrize(
    "name", ["..", "../console_page.py", "vendor/uplot/LICENSE", "LICENSE", "index.html", "%2e%2e", "main.js\0", ""]
)
def test_no_name_leads_out_of_the_folder(name: str) -> None:
    assert asset(name, BROWSER).status == 404


@pytest.mark.parametrize("path", ["/console/v/../../app.py", "/console/a/b/c", "/console/"])
def test_no_path_with_more_parts_is_routed(path: str) -> None:
    assert not _pattern(ASSET.path).match(path)
    assert not _pattern(UNVERSIONED.path).match(path)


def referenced(text: str) -> set[str]:
    names = re.findall(r"/console/\{version\}/([\w.-]+)", text)
    names += re.findall(r"""(?:from|import)\s*\(?\s*["']\./([\w.-]+)["']""", text)
    return set(names)


def test_every_file_that_another_names_is_there() -> None:
    named = {name for path in OWN for name in referenced(path.read_text())}
    assert {"main.js", "overview.js", "uPlot.iife.min.js", "console.css"} <= named
    assert named <= set(CONSOLE.assets)
    assert set(CONSOLE.assets) <= named, "a file that nothing names"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_file_names_another_host(path: Path) -> None:
    """But for the namespace of SVG, and the note above vendored code that says where it comes from."""
    text = re.sub(r"\A/\*!.*?\*/", "", path.read_text(), flags=re.DOTALL).replace("http://www.w3.org/2000/svg", "")
    assert re.findall(r"(?:https?:)?//[\w-]+\.[\w.-]+", text) == []


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_text_never_becomes_markup_or_code(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text)
    if path.suffix == ".html":
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", text)


def test_vendored_code_has_its_licence_beside_it() -> None:
    for folder in {path.parent for path in FILES if "vendor" in path.parts}:
        assert "Permission is hereby granted" in (folder / "LICENSE").read_text()


@pytest.mark.parametrize("path", [path for path in OWN if path.suffix in (".js", ".css")], ids=lambda path: path.name)
def test_every_file_can_be_read_in_one_go(path: Path) -> None:
    assert path.read_text().count("\n") <= 450


def test_the_first_page_is_small() -> None:
    wanted = referenced((FOLDER / "index.html").read_text()) | set(FIRST_PAGE)
    while True:
        statically = {
            name
            for each in wanted
            if (found := FOLDER / each).suffix == ".js" and found.exists()
            for name in re.findall(r"""from "\./([\w.-]+)";""", found.read_text())
        }
        if statically <= wanted:
            break
        wanted |= statically
    sizes = {name: len(CONSOLE.assets[name].compressed or CONSOLE.assets[name].content) for name in wanted}
    assert sum(sizes.values()) + len(CONSOLE.page.compressed or b"") < FIRST_PAGE_BYTES / 2
