"""Where results go: settings first, then the local stack, else a clear error; never a secret in what is printed."""

import pytest

from spark import config
from spark.config import WRONG_USAGE, Access, SparkFailure, load

SECRET = "s" * 16
INTERNAL = "http://127.0.0.1:5100"


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MYQUEUE_URL", "MYQUEUE_WRITE_MANAGER_URLS", "MYQUEUE_CLUSTER_SECRET"):
        monkeypatch.delenv(name, raising=False)


def local_stack(monkeypatch: pytest.MonkeyPatch, url: str | None) -> None:
    found = None if url is None else Access(url, (INTERNAL,), SECRET)
    monkeypatch.setattr(config, "_local_stack", lambda: found)


def test_settings_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    local_stack(monkeypatch, "http://127.0.0.1:8080")
    monkeypatch.setenv("MYQUEUE_URL", "http://far")
    monkeypatch.setenv("MYQUEUE_WRITE_MANAGER_URLS", "http://far:5100, http://far:5101")
    monkeypatch.setenv("MYQUEUE_CLUSTER_SECRET", SECRET + "t")
    settings = load()
    assert config.access(settings) == Access("http://far", ("http://far:5100", "http://far:5101"), SECRET + "t")
    assert SECRET not in repr(settings) + repr(config.access(settings))


@pytest.mark.parametrize(("asked", "is_found"), [(None, True), ("localhost:8080", True), ("http://far:8080", False)])
def test_the_local_stack_is_used_if_it_is_the_one(
    monkeypatch: pytest.MonkeyPatch, asked: str | None, is_found: bool
) -> None:
    local_stack(monkeypatch, "http://127.0.0.1:8080")
    if asked is not None:
        monkeypatch.setenv("MYQUEUE_URL", asked)
    if is_found:
        assert config.access(load()).write_manager_urls == (INTERNAL,)
        return
    with pytest.raises(SparkFailure, match="set MYQUEUE_WRITE_MANAGER_URLS and MYQUEUE_CLUSTER_SECRET") as failure:
        config.access(load())
    assert failure.value.exit_code == WRONG_USAGE


def test_one_of_the_two_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    local_stack(monkeypatch, None)
    monkeypatch.setenv("MYQUEUE_CLUSTER_SECRET", SECRET)
    with pytest.raises(SparkFailure, match="MYQUEUE_WRITE_MANAGER_URLS"):
        config.access(load())


def test_reading_needs_an_address_only(monkeypatch: pytest.MonkeyPatch) -> None:
    local_stack(monkeypatch, None)
    assert config.reading_url(load()) == "http://localhost"
    assert config.reading_url(load(url="http://far")) == "http://far"
    local_stack(monkeypatch, "http://127.0.0.1:8080")
    assert config.reading_url(load()) == "http://127.0.0.1:8080"


def test_addresses() -> None:
    assert config.is_same_url("http://localhost", "http://127.0.0.1:80/")
    assert not config.is_same_url("http://localhost:81", "http://localhost")
    assert not config.is_same_url("https://localhost", "http://localhost")
