"""A chat with webhooks, as Slack and Mattermost have them: its channels are channels. (MCPL §14)

    CHAT_URL=https://... CHAT_TOKEN=... python webhook_chat.py 9200 town-square

What is said goes to the chat's incoming webhook (CHAT_URL). The chat's outgoing webhook posts what
people write to http://HOST:9200/, with the token that the chat was given for it.
"""

import asyncio
import hashlib
import hmac
import json
import logging
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Final
from urllib.parse import parse_qs

from comity.sdk.server import ChannelDescriptor, ChannelDirection, FeatureUse, Message, Post, Server

log = logging.getLogger("chat")

MOST_BYTES: Final = 256 * 1024
ANSWER_SECONDS: Final = 20.0
TAKEN: Final = frozenset({"", "duplicate", "own_words", "no_turn"})


class Outside:
    """The chat's incoming webhook."""

    def __init__(self, url: str) -> None:
        self._url = url

    def say(self, channel: str, text: str) -> bool:
        """Whether it was taken; raises where nobody knows."""
        body = json.dumps({"channel": channel, "text": text}).encode()
        asked = urllib.request.Request(self._url, body, {"Content-Type": "application/json"})  # noqa: S310
        try:
            with urllib.request.urlopen(asked, timeout=ANSWER_SECONDS) as answer:  # noqa: S310
                return 200 <= answer.status < 300
        except urllib.error.HTTPError as refused:
            log.warning("the chat answers with %s", refused.code)
            return False


class Inside(ThreadingHTTPServer):
    """Where the chat posts what people write."""

    def __init__(self, place: tuple[str, int], token: str, server: Server) -> None:
        super().__init__(place, Receiver)
        self._token = token
        self._live = server
        self._loop = asyncio.get_running_loop()

    def status(self, kind: str, body: bytes) -> int:
        """How a post is answered: with 200 once the host has it, else it is posted again."""
        try:
            said = fields_in(kind, body)
        except ValueError:
            return 400
        if not hmac.compare_digest(said.get("token", "").encode(), self._token.encode()):
            return 401
        bringing = asyncio.run_coroutine_threadsafe(bring_in(self._live, said, body), self._loop)
        try:
            return 200 if bringing.result(ANSWER_SECONDS) else 503
        except TimeoutError:
            return 503


class Receiver(BaseHTTPRequestHandler):
    timeout = ANSWER_SECONDS

    def do_POST(self) -> None:
        assert isinstance(self.server, Inside)
        length = self.headers.get("content-length", "")
        if not length.isdecimal() or int(length) > MOST_BYTES:
            status = 413
        else:
            body = self.rfile.read(int(length))
            status = self.server.status(self.headers.get_content_type(), body)
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Only what is not taken is told."""


def fields_in(kind: str, body: bytes) -> dict[str, str]:
    """What was posted, in either of the two ways that chats have. Raises ValueError."""
    if kind == "application/json":
        found: Any = json.loads(body)
        if not isinstance(found, Mapping):
            raise ValueError("no object")
        return {str(name): str(each) for name, each in found.items()}  # type: ignore[misc]
    read = parse_qs(body.decode(), max_num_fields=64)
    return {name: values[-1] for name, values in read.items()}


async def bring_in(server: Server, said: Mapping[str, str], body: bytes) -> bool:
    """Whether the host has it, or wants no more of it."""
    channel, text = said.get("channel_name", ""), said.get("text", "").strip()
    if not channel or not text or said.get("bot_id"):
        return True
    await server.channels.register(described(channel))
    message = Message(
        channel_of(channel),
        # Mattermost has ids of posts, Slack timestamps that serve as such.
        said.get("post_id") or said.get("timestamp") or hashlib.sha256(body).hexdigest(),
        text,
        said.get("user_name", ""),
        said.get("user_id", ""),
        said.get("thread_ts") or said.get("root_id") or "",
    )
    (result,) = await server.channels.incoming(message)
    if result.reason:
        log.warning("message %s was not taken: %s", message.id, result.reason)
    return result.accepted or result.reason in TAKEN


def channel_of(name: str) -> str:
    return f"chat:{name}"


def described(name: str) -> ChannelDescriptor:
    address, metadata = {"channel": name}, {"delivery": "webhook"}
    return ChannelDescriptor(
        channel_of(name), "chat", f"#{name}", ChannelDirection.BOTH, address, metadata
    )


def chat_server(port: int, token: str, outside: Outside, channels: Iterable[str]) -> Server:
    server = Server("chat")
    server.feature(
        "channels.publish", "Say things in the chat", uses=[FeatureUse.PUBLISH], scoped=True
    )
    server.feature(
        "channels.observe", "Hear what is said there", uses=[FeatureUse.OBSERVE], scoped=True
    )
    taken: set[str] = set()

    @server.channels.on_publish
    async def publish(post: Post) -> bool:
        if post.id in taken:
            return True
        name = str(post.channel.address["channel"])
        if not await asyncio.to_thread(outside.say, name, post.text):
            return False
        taken.add(post.id)
        return True

    @server.background
    async def listen() -> None:
        await server.channels.register(*map(described, channels))
        inside = Inside(("127.0.0.1", port), token, server)
        Thread(target=inside.serve_forever, daemon=True).start()
        try:
            await asyncio.Event().wait()
        finally:
            inside.shutdown()
            inside.server_close()

    return server


if __name__ == "__main__":
    # Standard output is the protocol's.
    logging.basicConfig(stream=sys.stderr)
    given = os.environ["CHAT_TOKEN"], Outside(os.environ["CHAT_URL"])
    chat_server(int(sys.argv[1]), *given, sys.argv[2:]).run()
