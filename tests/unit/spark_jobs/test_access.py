"""Where results go: settings first, then the local stack, else a clear error; never a secret in what is printed."""

import pytest

from spark import access
from spark.access import Access
from spark.config import load
from spark.failure import WRONG_USAGE, SparkFailure

SECRET = "s" * 16
INTERNAL = "http://127.0.0.1:5100"


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MYQUEUE_URL", "MYQUEUE_WRITE_MANAGER_URL", "MYQUEUE_CLUSTER_SECRET"):
        monkeypatch.delenv(name, raising=False)


def local_stack(monkeypatch: pytest.MonkeyPatch, url: str | None) -> None:
    found = None if url is None else Access(url, INTERNAL, SECRET)
    monkeypatch.setattr(access, "_local_stack", lambda: found)


def test_settings_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    local_stack(monkeypatch, "http://127.0.0.1:8080")
    monkeypatch.setenv("MYQUEUE_URL", "http://far")
    monkeypatch.setenv("MYQUEUE_WRITE_MANAGER_URL", "http://far:5100")
    monkeypatch.setenv("MYQUEUE_CLUSTER_SECRET", SECRET + "t")
    settings = load()
    assert access.access(settings) == Access("http://far", "http://far:5100", SECRET + "t")
    assert SECRET not in repr(settings) + repr(access.access(settings))


@pytest.mark.parametrize(("asked", "is_found"), [(None, True), ("localhost:8080", True), ("http://far:8080", False)])
def test_the_local_stack_is_used_if_it_is_the_one(
    monkeypatch: pytest.MonkeyPatch, asked: str | None, is_found: bool
) -> None:
    local_stack(monkeypatch, "http://127.0.0.1:8080")
    if asked is not None:
        monkeypatch.setenv("MYQUEUE_URL", asked)
    if is_found:
        assert access.access(load()).write_manager_url == INTERNAL
        return
    with pytest.raises(SparkFailure, match="set MYQUEUE_WRITE_MANAGER_URL and MYQUEUE_CLUSTER_SECRET") as failure:
        access.access(load())
    assert failure.value.exit_code == WRONG_USAGE


def test_one_of_the_two_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    local_stack(monkeypatch, None)
    monkeypatch.setenv("MYQUEUE_CLUSTER_SECRET", SECRET)
    with pytest.raises(SparkFailure, match="MYQUEUE_WRITE_MANAGER_URL"):
        access.access(load())


def test_reading_needs_an_address_only(monkeypatch: pytest.MonkeyPatch) -> None:
    local_stack(monkeypatch, None)
    assert access.reading_url(load()) == "http://localhost"
    assert access.reading_url(load(url="http://far")) == "http://far"
    local_stack(monkeypatch, "http://127.0.0.1:8080")
    assert access.reading_url(load()) == "http://127.0.0.1:8080"


def test_addresses() -> None:
    assert access.is_same("http://localhost", "http://127.0.0.1:80/")
    assert not access.is_same("http://localhost:81", "http://localhost")
    assert not access.is_same("https://localhost", "http://localhost")
