"""How every relay of the bench opens its HTTP door: a free loopback port, said on stderr."""

import socket
import sys
from collections.abc import Callable
from typing import Any

import uvicorn


def serve(application: Callable[[], Any], name: str, *, lifespan: bool = False) -> None:
    """Serves what `application` makes, inside the running loop, until the process is ended."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    port = listener.getsockname()[1]
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
    print(f"{name}: listening on http://127.0.0.1:{port}", file=sys.stderr, flush=True)
    uvicorn.Server(config).run(sockets=[listener])
