"""Addresses as people write them."""

import pytest

from myqueue import Admin, ApiHandler, MyConsumer, MyProducer, Properties, Reader
from myqueue.cluster_url import base_url


@pytest.mark.parametrize(
    ("written", "url"),
    [
        ("http://localhost", "http://localhost"),
        ("http://localhost/", "http://localhost"),
        ("localhost", "http://localhost"),
        ("localhost:8080", "http://localhost:8080"),
        ("127.0.0.1:8080/", "http://127.0.0.1:8080"),
        (" https://queue.example:8443// ", "https://queue.example:8443"),
        ("http://gateway/queue/", "http://gateway/queue"),
        ("[::1]:8080", "http://[::1]:8080"),
    ],
)
def test_good_addresses(written: str, url: str) -> None:
    assert base_url(written) == url


@pytest.mark.parametrize(
    "written", ["", "http://", "ftp://host", "host:notaport", "host:70000", "http://a b", "http://u:p@host", "host?x=1"]
)
def test_bad_addresses_are_named(written: str) -> None:
    with pytest.raises(ValueError, match=r"url: '.*': the (address|port)"):
        base_url(written)


def test_a_password_in_an_address_is_not_shown() -> None:
    """The error goes into logs."""
    for written in ("http://me:s3cret@host", "me:s3cret@host:notaport", "ftp://me:s3cret@host"):
        with pytest.raises(ValueError, match=r"the (address|port)") as refused:
            base_url(written)
        assert "s3cret" not in str(refused.value)
        assert "host" in str(refused.value)


def test_without_an_address_it_is_the_variable_or_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MYQUEUE_URL", raising=False)
    assert base_url() == "http://localhost"
    monkeypatch.setenv("MYQUEUE_URL", "")
    assert base_url() == "http://localhost"
    monkeypatch.setenv("MYQUEUE_URL", "queue.example:81/")
    assert (base_url(None), base_url("other")) == ("http://queue.example:81", "http://other")


def test_the_variable_is_named_when_it_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MYQUEUE_URL", "ftp://queue")
    with pytest.raises(ValueError, match="MYQUEUE_URL: 'ftp://queue': the address must start with http"):
        Admin()
    assert base_url("other") == "http://other"


@pytest.mark.parametrize("given", [80, b"http://localhost", ["localhost"], True])
def test_another_type_is_refused_by_name(given: object) -> None:
    what = type(given).__name__
    with pytest.raises(TypeError, match=f"url must be a str such as 'http://localhost', or None, not {what}"):
        Admin(given)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=f"broker must be a str such as 'http://localhost', or None, not {what}"):
        MyProducer(["orders"], given)  # type: ignore[arg-type]


def test_each_client_takes_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong one shows who reads it, without a server."""
    monkeypatch.setenv("MYQUEUE_URL", "http://u:p@host")
    with pytest.raises(ValueError, match="MYQUEUE_URL"):
        ApiHandler()
    with pytest.raises(ValueError, match="MYQUEUE_URL"):
        MyProducer(["orders"])
    with pytest.raises(ValueError, match="MYQUEUE_URL"):
        MyConsumer(Properties(None, id=7, topic="orders"))
    with pytest.raises(ValueError, match="MYQUEUE_URL"):
        Reader(topic="orders", offsets={0: 0})
    with pytest.raises(TypeError, match="a Reader needs a topic and offsets"):
        Reader("localhost")
