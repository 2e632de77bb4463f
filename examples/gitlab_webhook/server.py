"""GitLab's webhooks, received by a live server of one's own and pushed to its host. (MCPL §9)

    GITLAB_TOKEN=... python server.py 9100

GitLab posts to http://HOST:9100/, with the token as its secret token. It is answered with 200 once
the host has the event for good; before that it is answered with an error, and posts again.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase
from threading import Thread
from typing import Final

from gitlab import Event, event_in, is_genuine

from comity.sdk.server import Feature, FeatureUse, Server

log = logging.getLogger("gitlab")

MOST_BYTES: Final = 1024 * 1024
ANSWER_SECONDS: Final = 9.0
"""GitLab waits for ten."""


class Hooks(ThreadingHTTPServer):
    """Where GitLab posts to; each post has a thread of its own."""

    def __init__(self, place: tuple[str, int], token: str, notifications: Feature) -> None:
        super().__init__(place, Receiver)
        self._token = token
        self._notifications = notifications
        self._loop = asyncio.get_running_loop()

    def status(self, headers: Mapping[str, str], stream: BufferedIOBase) -> int:
        """How a post is answered."""
        if not is_genuine(headers, self._token):
            return 401
        length = headers.get("content-length", "")
        if not length.isdecimal() or int(length) > MOST_BYTES:
            return 413
        try:
            event = event_in(headers, stream.read(int(length)))
        except ValueError:
            return 400
        return 200 if event is None or self._is_taken(event) else 503

    def _is_taken(self, event: Event) -> bool:
        pushing = self._notifications.push(event.id, event.text, origin=event.origin)
        try:
            pushed = asyncio.run_coroutine_threadsafe(pushing, self._loop).result(ANSWER_SECONDS)
        except TimeoutError:
            return False
        if not pushed.is_taken:
            log.warning("event %s was not taken: %s", event.id, pushed.reason)
        return pushed.is_taken


class Receiver(BaseHTTPRequestHandler):
    timeout = ANSWER_SECONDS

    def do_POST(self) -> None:
        assert isinstance(self.server, Hooks)
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.send_response(self.server.status(headers, self.rfile))
        self.send_header("content-length", "0")
        self.end_headers()

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Only what is not taken is told."""


def gitlab_server(port: int, token: str, host: str = "127.0.0.1") -> Server:
    server = Server("gitlab")
    notifications = server.feature(
        "gitlab.notifications", "Tell what happens in GitLab", uses=[FeatureUse.PUSH]
    )

    @server.background
    async def listen() -> None:
        hooks = Hooks((host, port), token, notifications)
        Thread(target=hooks.serve_forever, daemon=True).start()
        try:
            await asyncio.Event().wait()
        finally:
            hooks.shutdown()
            hooks.server_close()

    return server


if __name__ == "__main__":
    # Standard output is the protocol's.
    logging.basicConfig(stream=sys.stderr)
    gitlab_server(int(sys.argv[1]), os.environ["GITLAB_TOKEN"]).run()
