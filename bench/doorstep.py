"""How every relay of the bench opens its HTTP door: a free loopback port, told on stderr."""

import socket
import sys
from collections.abc import Callable
from typing import Any

import uvicorn
import uvloop


async def serve(application: Callable[[], Any], name: str, *, lifespan: bool) -> None:
    """Serves what `application` makes, in the fastest way uvicorn has, until the process ends."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    config = uvicorn.Config(
        application,
        factory=True,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="on" if lifespan else "off",
        access_log=False,
        log_level="warning",
        server_header=False,
        date_header=False,
    )
    port = listener.getsockname()[1]
    print(f"{name}: listening on http://127.0.0.1:{port}", file=sys.stderr, flush=True)
    await uvicorn.Server(config).serve(sockets=[listener])


def run(application: Callable[[], Any], name: str) -> None:
    uvloop.run(serve(application, name, lifespan=False))
