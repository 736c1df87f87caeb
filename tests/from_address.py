"""Requests that come from another address of this machine."""

import requests
from requests.adapters import HTTPAdapter


class _FromAddress(HTTPAdapter):
    def __init__(self, address: str) -> None:
        self._address = address
        super().__init__()

    def init_poolmanager(self, *args: object, **more: object) -> None:
        super().init_poolmanager(*args, **more, source_address=(self._address, 0))  # type: ignore[arg-type]


def session_from(address: str) -> requests.Session:
    session = requests.Session()
    session.mount("http://", _FromAddress(address))
    return session
