"""A gateway with topics, those who come to it, and members on the plain `websockets` client."""

import asyncio
import contextlib
import io
import itertools
import json
import os
import subprocess
import threading
from collections.abc import Generator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self, cast
from unittest import mock

from websockets.sync.client import ClientConnection, connect

from comity.app.gateway import assemble_gateway
from comity.app.settings import Settings
from comity.cli.main import main
from comity.http.server import event_loop
from comity.identity.authentication import IdentityDirectory
from comity.policy.grants import Effect, Grant
from comity.topics.settings import TopicOverride
from tests.cli.lines import LineReader
from tests.cli.program import SECONDS, Ran
from tests.support.credentials import GivenOut
from tests.support.fork_server import COMITY
from tests.support.listening import Application, listening
from tests.support.settings import settings_with

ANA = "person:ana@example.org"
BOT, WORKER = "agent:bot", "agent:worker"
NOBODY_THERE = {"COMITY_URL": "http://127.0.0.1:9"}
GRANTED = tuple(
    Grant(ANA, verb, target, Effect.ALLOW)
    for verb, target in (("admin/read", "*"), ("admin/write", "*"), ("topic/send", "ops/*"))
)
ROOMS = (
    TopicOverride("closed", access="restricted"),
    TopicOverride("secret", access="private"),
    TopicOverride("later", kinds="later", capabilities=("mcp/*", "chat"), history=10),
)

type Envelope = dict[str, Any]


class Member:
    """Somebody in a topic, who says and hears envelopes as they stand in the document."""

    def __init__(self, origin: str, topic: str, key: str = "", more: str = "") -> None:
        address = f"{origin.replace('http', 'ws', 1)}/ws?topic={topic}{more}"
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        opened = connect(address, additional_headers=headers, proxy=None, open_timeout=SECONDS)
        self._socket: ClientConnection = opened.__enter__()
        self._ids = itertools.count(1)
        self.heard: list[Envelope] = []
        you = self.until("system/welcome")["payload"]["you"]
        self.id: str = you["id"]
        self.capabilities: list[str] = you["capabilities"]

    def say(self, kind: str, payload: object, **more: object) -> str:
        id = f"{self.id}-{next(self._ids)}-{hash(str(payload)) & 0xFFFFFF:x}"
        said = {"protocol": "mcpx/v0.1", "id": id, "from": self.id, "kind": kind, **more}
        self._socket.send(json.dumps({**said, "payload": payload}))
        return id

    def chat(self, text: str, **more: object) -> str:
        return self.say("chat", {"text": text}, **more)

    def propose(self, tool: str, arguments: object, *to: str) -> str:
        payload = {"method": "tools/call", "params": {"name": tool, "arguments": arguments}}
        return self.say(f"mcp/proposal:tools/call:{tool}", payload, to=list(to))

    def answer(self, request: Envelope, text: str, *also: str) -> str:
        result = {"content": [{"type": "text", "text": text}]}
        return self.say(
            request["kind"].replace("request", "response", 1),
            {"jsonrpc": "2.0", "id": request["payload"]["id"], "result": result},
            to=[request["from"], *also],
            correlation_id=request["id"],
        )

    def until(self, kind: str, **members: object) -> Envelope:
        """The next envelope of this kind, or of one that begins so, with these members."""
        while True:
            found: Envelope = json.loads(self._socket.recv(SECONDS))
            self.heard.append(found)
            if found["kind"].startswith(kind) and members.items() <= found.items():
                return found

    def has_come(self, party: str) -> None:
        while self.until("system/presence")["payload"]["participant"]["id"] != party:
            pass

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def comity(*words: str, **env: str) -> Ran:
    """The command in this very process, which is much quicker than another one."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    with (
        mock.patch.dict(os.environ, env),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        status = main(words)
    out.seek(0)
    return Ran(status, out.read(), err.getvalue())


@dataclass
class TopicHouse:
    """The gateway, and how those who come to it are known: `keys` by party."""

    origin: str
    keys: dict[str, str]

    def run(self, *words: str, by: str = ANA, **env: str) -> Ran:
        return comity("topics", *words, **{**self.shown(by), **env})

    def shown(self, by: str) -> dict[str, str]:
        """What a command finds in its environment where this party runs it."""
        # The runner's own width is no part of what a command says.
        return {"COMITY_URL": self.origin, "COMITY_KEY": self.keys[by], "COLUMNS": "160"}

    def member(self, topic: str, party: str, more: str = "") -> Member:
        return Member(self.origin, topic, self.keys[party], more)


class _Thread:
    """The gateway in a thread and an event loop of its own, so that a test may wait as it likes."""

    def __init__(self, settings: Settings, register: IdentityDirectory | None) -> None:
        self._settings = settings
        self._register = register
        self._ready: Future[str] = Future()
        self._ended: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> str:
        self._thread.start()
        return self._ready.result(SECONDS)

    def stop(self) -> None:
        loop, ended = self._ended.result(SECONDS)
        loop.call_soon_threadsafe(ended.set)
        self._thread.join(SECONDS)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=event_loop) as runner:
            try:
                runner.run(self._serve())
            except BaseException as error:
                self._ready.set_exception(error)
                raise

    async def _serve(self) -> None:
        ended = asyncio.Event()
        self._ended.set_result((asyncio.get_running_loop(), ended))
        async with (
            assemble_gateway(self._settings, self._register) as parts,
            listening(cast("Application", parts.http_app)) as place,
        ):
            self._ready.set_result(place.address)
            await ended.wait()


@contextmanager
def topic_house(**chosen: Any) -> Generator[TopicHouse]:
    """A gateway where everybody shows a key; with `identity_mode="local"`, where nobody does."""
    given_out = GivenOut()
    wanted: dict[str, Any] = {"identity_mode": "required", "grants": GRANTED, "servers": ()}
    wanted |= {"topics_access": "public", "topics_overrides": ROOMS, **chosen}
    is_local = wanted["identity_mode"] == "local"
    thread = _Thread(
        settings_with(topics_message_rate=6000, topics_chat_rate=6000, **wanted),
        None if is_local else given_out.register,
    )
    try:
        keys = {party: "" if is_local else given_out.give(party) for party in (ANA, BOT, WORKER)}
        yield TopicHouse(thread.start(), keys)
    finally:
        thread.stop()


class Piped:
    """`comity topics join` as a program that writes and reads lines."""

    def __init__(self, house: TopicHouse, *words: str, by: str = ANA) -> None:
        self.process = subprocess.Popen(
            [COMITY, "topics", "join", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **house.shown(by)},
        )
        assert self.process.stdout is not None
        self._lines = LineReader(self.process.stdout)

    def type(self, *lines: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("".join(f"{line}\n" for line in lines).encode())
        self.process.stdin.flush()

    def until(self, text: str) -> str:
        """The first line with this in it that was not looked at before."""
        return self._lines.until(text)

    def end(self) -> tuple[int, str, str]:
        """How it ends once nothing more is typed: its status, and what else it wrote."""
        out, err = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, self._lines.unread + out.decode(), err.decode()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(SECONDS)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
