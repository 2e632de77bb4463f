"""A gateway with live servers on real pipes, each of them played by the test, frame by frame."""

import asyncio
import contextlib
import itertools
import json
import sys
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, cast

from comity.app.gateway import GatewayParts, assemble_gateway
from comity.app.settings_reader import load_settings
from comity.cli.api_client import new_token, write_record
from comity.mcp.actors import LOCAL_OPERATOR
from comity.sdk.topics.events import Chat
from comity.sdk.topics.participant import Participant, ParticipantOptions, join_topic
from tests.pace import here
from tests.support.listening import Application, listening

RELAY: Final = Path(__file__).with_name("puppet_relay.py")
PATIENCE: Final = here(30.0)
"""Measured once: to measure takes a while itself."""
BOTH: Final = {
    "channels.publish": {"description": "say", "uses": ["channels.publish"], "scoped": True},
    "channels.observe": {"description": "hear", "uses": ["channels.observe"], "scoped": True},
    "channels.thinking": {"description": "think", "uses": ["channels.observe"], "scoped": True},
}
ALLOWED: Final = 'enabled = ["channels.publish", "channels.observe"]'

type Frame = dict[str, Any]
type Played = Callable[[Mapping[str, Any]], Mapping[str, Any] | None]
"""What a server answers to a request; None: nothing, ever."""


class Error(Exception):
    """What a played server answers as an error."""

    def __init__(self, code: int, message: str = "no", data: object = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


@dataclass(slots=True)
class Puppet:
    """One live server, as the test plays it."""

    name: str
    sets: Mapping[str, Any] = field(default_factory=lambda: dict(BOTH))
    channels: Mapping[str, bool] = field(default_factory=dict[str, bool])
    declares: Mapping[str, Any] = field(default_factory=dict[str, Any])
    plays: dict[str, Played] = field(default_factory=dict[str, Played])
    heard: list[Frame] = field(default_factory=list[Frame])
    stirred: asyncio.Condition = field(default_factory=asyncio.Condition)
    connections: int = 0
    _writer: asyncio.StreamWriter | None = None
    _waiting: dict[str, asyncio.Future[Frame]] = field(
        default_factory=dict[str, "asyncio.Future[Frame]"]
    )
    _ids: Any = field(default_factory=itertools.count)

    async def ask(self, method: str, params: Mapping[str, Any]) -> Frame:
        """The whole answer of the gateway."""
        id = f"p{next(self._ids)}"
        future = self._waiting[id] = asyncio.get_running_loop().create_future()
        self._say({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
        async with asyncio.timeout(PATIENCE):
            return await future

    async def asked(self, method: str, params: Mapping[str, Any]) -> Frame:
        """What it was answered; an error fails the test."""
        answer = await self.ask(method, params)
        assert "result" in answer, answer
        return answer["result"]

    async def code(self, method: str, params: Mapping[str, Any]) -> int:
        """The code of the error that it was answered."""
        answer = await self.ask(method, params)
        assert "error" in answer, answer
        return answer["error"]["code"]

    def tell(self, method: str, params: Mapping[str, Any]) -> None:
        self._say({"jsonrpc": "2.0", "method": method, "params": params})

    def said(self, method: str) -> list[Frame]:
        """The parameters of all that the gateway asked and told with this method."""
        return [each.get("params", {}) for each in self.heard if each.get("method") == method]

    async def until(self, method: str, count: int = 1) -> list[Frame]:
        async with asyncio.timeout(PATIENCE), self.stirred:
            await self.stirred.wait_for(lambda: len(self.said(method)) >= count)
        return self.said(method)

    async def register(self, *ids: str, **more: Any) -> list[Frame]:
        channels = [channel(id, **more) for id in ids]
        return (await self.asked("channels/register", {"channels": channels}))["results"]

    async def hears(self, *messages: Frame) -> list[Frame]:
        return (await self.asked("channels/incoming", {"messages": list(messages)}))["results"]

    def answers(self, params: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        """Answer the request with these parameters, which it had left unanswered."""
        id = next(each["id"] for each in self.heard if each.get("params") == params)
        self._say({"jsonrpc": "2.0", "id": id, "result": result})

    def cut(self) -> None:
        """Its process ends."""
        assert self._writer is not None
        self._writer.transport.abort()

    # How it is connected.

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self.connections += 1
        while line := await reader.readline():
            await self._heard(json.loads(line))

    async def _heard(self, frame: Frame) -> None:
        if "method" not in frame:
            waiting = self._waiting.pop(str(frame.get("id")), None)
            if waiting is not None and not waiting.done():
                waiting.set_result(frame)
            return
        self.heard.append(frame)
        if "id" in frame:
            self._answer(frame)
        async with self.stirred:
            self.stirred.notify_all()

    def _answer(self, frame: Frame) -> None:
        play = self.plays.get(frame["method"], self._usual.get(frame["method"]))
        try:
            result = (play or _unknown)(frame.get("params", {}))
        except Error as error:
            told: Frame = {"code": error.code, "message": str(error)}
            if error.data is not None:
                told["data"] = error.data
            self._say({"jsonrpc": "2.0", "id": frame["id"], "error": told})
            return
        if result is not None:
            self._say({"jsonrpc": "2.0", "id": frame["id"], "result": result})

    @property
    def _usual(self) -> dict[str, Played]:
        return {
            "initialize": self._greeting,
            "ping": lambda _: {},
            "tools/list": lambda _: {"tools": []},
            "channels/publish": lambda _: {"delivered": True},
        }

    def _greeting(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        live = {"version": "0.4", "channels": dict(self.channels), "featureSets": dict(self.sets)}
        live |= self.declares
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}, "experimental": {"mcpl": live}},
            "serverInfo": {"name": self.name, "version": "1"},
        }

    def _say(self, frame: Frame) -> None:
        assert self._writer is not None
        self._writer.write(json.dumps(frame).encode() + b"\n")


def _unknown(_: Mapping[str, Any]) -> Mapping[str, Any]:
    raise Error(-32601)


def channel(id: str, **more: Any) -> Frame:
    return {"id": id, "type": "chat", "label": id, "direction": "bidirectional", **more}


_numbers = itertools.count(1)


def message(text: str, channel: str = "room", id: str = "", **more: Any) -> Frame:
    """One from outside."""
    return {
        "channelId": channel,
        "messageId": id or f"m{next(_numbers)}",
        "author": {"id": "u1", "name": "Somebody"},
        "timestamp": "2026-11-02T08:30:00Z",
        "content": [{"type": "text", "text": text}],
        **more,
    }


@dataclass(slots=True)
class Listener:
    """Somebody in a topic, and all that was said there."""

    me: Participant
    chats: list[Chat] = field(default_factory=list[Chat])
    stirred: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def until(self, count: int = 1) -> list[Chat]:
        async with asyncio.timeout(PATIENCE), self.stirred:
            await self.stirred.wait_for(lambda: len(self.chats) >= count)
        return self.chats


@dataclass(slots=True)
class Scene:
    """The gateway, where it is met, and its servers."""

    parts: GatewayParts
    origin: str
    puppets: dict[str, Puppet]

    async def api(self, method: str, *place: str, **body: object) -> Frame:
        """What operators read and change at /api/channels."""
        path = "/".join(("/api/channels", *place))
        return cast("Frame", dict(await self.parts.api.answer(method, path, body, LOCAL_OPERATOR)))

    async def shown(self) -> dict[tuple[str, str], str]:
        found: list[Any] = (await self.api("GET"))["channels"]
        return {(each["server"], each["id"]): each["state"] for each in found}

    @asynccontextmanager
    async def member(self, topic: str, alias: str = "ana") -> AsyncGenerator[Listener]:
        async with join_topic(self.origin, topic, options=ParticipantOptions(alias=alias)) as me:
            found = Listener(me)

            async def listen() -> None:
                async for event in me:
                    if isinstance(event, Chat) and event.sender != me.id:
                        async with found.stirred:
                            found.chats.append(event)
                            found.stirred.notify_all()

            listening_now = asyncio.create_task(listen())
            try:
                yield found
            finally:
                listening_now.cancel()
                await asyncio.gather(listening_now, return_exceptions=True)


@asynccontextmanager
async def scene(
    folder: Path,
    *puppets: Puppet,
    rows: str = "",
    live: str | Mapping[str, str] = ALLOWED,
    store: str = "",
) -> AsyncGenerator[Scene]:
    """All of it until the way out; `live` is what each server may, as in the settings."""
    played = {each.name: each for each in puppets}

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            name = (await reader.readline()).decode().strip()
            if name in played:
                await played[name].connected(reader, writer)

    stage = await asyncio.start_server(meet, "127.0.0.1", 0, limit=64 * 1024 * 1024)
    port = stage.sockets[0].getsockname()[1]
    kept = store or f"sqlite:///{folder / 'comity.db'}"
    text = f'[store]\nurl = "{kept}"\n' + _settings(played.values(), port, live) + rows
    path = folder / "comity.toml"
    path.write_text(text, "utf-8")
    try:
        token = new_token()
        async with (
            assemble_gateway(load_settings(path, {}), operator_token=token) as parts,
            listening(cast("Application", parts.http_app), None) as place,
        ):
            # Commands find the token there, as that of any gateway.
            write_record(place.address, path, token)
            await parts.servers.wait_for_first_starts(timedelta(seconds=PATIENCE))
            for each in puppets:
                await each.until("featureSets/update")
            yield Scene(parts, place.address, played)
    finally:
        stage.close()


def _settings(puppets: Iterable[Puppet], port: int, live: str | Mapping[str, str]) -> str:
    text = ""
    for each in puppets:
        may = live if isinstance(live, str) else live.get(each.name, ALLOWED)
        args = json.dumps([str(RELAY), str(port), each.name])
        text += (
            f'\n[[servers]]\nid = "{each.name}"\ncommand = "{sys.executable}"\nsandbox = "none"\n'
        )
        text += f'args = {args}\nprotocol = "2025-11-25"\n[servers.live]\n{may}\n'
    return text + "\n"
