"""A WSGI application that opens its producer when it is imported: an application server that preloads it then forks."""

import json
import os
from collections.abc import Callable, Iterable
from typing import Any

from myqueue import Producer

producer = Producer(os.environ["MYQUEUE_URL"], topic=os.environ["SHOP_TOPIC"])
producer.send(f"loaded by {os.getpid()}").result(30)  # its threads and connections are those of the parent


def application(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
    """Sends the path, and answers where it is stored and by which process."""
    receipt = producer.send(environ["PATH_INFO"].strip("/")).result(30)
    body = json.dumps({"process": os.getpid(), "partition": receipt.partition, "offset": receipt.offset}).encode()
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
    return [body]
