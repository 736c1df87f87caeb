"""What the package offers, and what it does not load."""

import subprocess
import sys

import myqueue


def test_every_public_name_is_there() -> None:
    assert all(getattr(myqueue, name) is not None for name in myqueue.__all__)
    assert sorted(myqueue.__all__) == sorted(set(myqueue.__all__))


def test_servers_load_no_http_client_and_users_no_pydantic() -> None:
    protocol = "import sys, myqueue.protocol.models; assert 'http.client' not in sys.modules"
    light = "import sys, myqueue; assert 'pyarrow' not in sys.modules"
    library = "import sys; from myqueue import *; assert 'pydantic' not in sys.modules"
    for code in (protocol, light, library):
        subprocess.run([sys.executable, "-c", code], check=True)
