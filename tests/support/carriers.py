"""A scripted tool server over the carrier's port, with and without stream identity."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from comity.errors import Unavailable
from comity.mcp import jsonrpc, protocol
from comity.mcp.jsonrpc import UNSET, Frame
from comity.mcp.protocol import STANDALONE, UNKNOWN, Era, Stream
from comity.sessions.upstream import TransportListener
from comity.telemetry.tracing import Headers

WAIT_SECONDS: Final = 10.0
SILENCE: Final = object()
"""What a script says where the server never answers."""

type Params = dict[str, object]
type Reply = object | Callable[[Params], object]


class Clock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time

    def passes(self, seconds: float) -> None:
        self.time += seconds


async def until(is_so: Callable[[], object]) -> None:
    """Let everything run that can, until it is so; bounded."""
    async with asyncio.timeout(WAIT_SECONDS):
        while not is_so():
            await asyncio.sleep(0)


async def settled(turns: int = 30) -> None:
    """Let everything run that can run by itself."""
    for _ in range(turns):
        await asyncio.sleep(0)


def params_of(frame: Frame) -> Params:
    return {} if frame.params is UNSET else msgspec.json.decode(frame.params, type=Params)


def result_of(frame: Frame) -> Params:
    assert frame.result is not UNSET, frame
    return msgspec.json.decode(frame.result, type=Params)


def hello(**capabilities: object) -> Params:
    return {
        "protocolVersion": protocol.LATEST_HANDSHAKE,
        "capabilities": capabilities or {"tools": {}},
        "serverInfo": {"name": "scripted", "version": "1"},
    }


def discovered(**capabilities: object) -> Params:
    return {
        "supportedVersions": [protocol.LATEST_MODERN],
        "capabilities": capabilities or {"tools": {}},
    }


@dataclass(frozen=True, slots=True)
class Sent:
    """One message as the server saw it."""

    frame: Frame
    stream: Stream
    headers: Headers


@dataclass(slots=True)
class Script:
    """How a server behaves, for every carrier that reaches it."""

    starts_process: bool = False
    handshake: bool = True
    modern: bool = False
    refuses: str | None = None
    replies: dict[str, Reply] = field(default_factory=dict[str, Reply])
    carriers: list["ScriptedCarrier"] = field(default_factory=list["ScriptedCarrier"])

    def create_transport(self, era: Era) -> "ScriptedCarrier":
        made = ScriptedCarrier(self, era)
        self.carriers.append(made)
        return made

    @property
    def last(self) -> "ScriptedCarrier":
        return self.carriers[-1]

    @property
    def open(self) -> list["ScriptedCarrier"]:
        return [carrier for carrier in self.carriers if carrier.is_open]

    def reply_to(self, method: str) -> Reply:
        if method in self.replies:
            return self.replies[method]
        if method == protocol.INITIALIZE and self.handshake:
            return hello()
        if method == protocol.DISCOVER and self.modern:
            return discovered()
        if method == protocol.LIST_TOOLS:
            return {"tools": []}
        if method in (protocol.INITIALIZE, protocol.DISCOVER):
            return Unavailable("Method not found")
        return SILENCE


class ScriptedCarrier:
    """One link to the scripted server, with everything that was sent over it."""

    def __init__(self, script: Script, era: Era) -> None:
        self.era = era
        self.sent: list[Sent] = []
        self.versions: list[str] = []
        self.paused: list[tuple[bool, Stream]] = []
        self.abandoned: list[Stream] = []
        self.listens = 0
        self.is_open = False
        self.has_exited_cleanly = False
        self.breaks: Unavailable | None = None
        self._script = script
        self.receiver: TransportListener

    @property
    def has_separate_streams(self) -> bool:
        return not self._script.starts_process

    async def open(self, listener: TransportListener) -> None:
        self.receiver = listener
        if self._script.refuses is not None:
            raise Unavailable(self._script.refuses)
        self.is_open = True

    def send(self, frame: Frame, stream: Stream, headers: Headers = ()) -> None:
        if self.breaks is not None:
            raise self.breaks
        # Every byte goes the way it would go: what cannot be encoded fails here.
        frame = jsonrpc.decode_frame(jsonrpc.encode_frame(frame))
        self.sent.append(Sent(frame, stream, headers))
        if frame.method is not UNSET and frame.id is not UNSET:
            reply = self._script.reply_to(frame.method)
            if reply is not SILENCE:
                asyncio.get_running_loop().call_soon(self._reply, frame, reply)

    def _reply(self, frame: Frame, reply: Reply) -> None:
        said = reply(params_of(frame)) if callable(reply) else reply
        if said is SILENCE or not self.is_open:
            return
        if isinstance(said, Unavailable):
            self.says(jsonrpc.make_error(_id(frame), said.fault, str(said)), frame)
        else:
            self.answers(frame, said)

    def answers(self, asked: Frame, result: object) -> None:
        self.says(jsonrpc.make_result(_id(asked), result), asked)

    def says(self, frame: Frame | bytes, amid: Frame | None = None) -> None:
        """The server says something, on the stream of a request or on nobody's."""
        data = frame if isinstance(frame, bytes) else jsonrpc.encode_frame(frame)
        stream: Stream = UNKNOWN
        if self.has_separate_streams:
            stream = STANDALONE if amid is None else int(_id(amid))
        self.receiver.on_message(data, stream, 200)

    def dies(self, because: str = "exit status 1", *, well: bool = False) -> None:
        self.is_open = False
        self.has_exited_cleanly = well
        self.receiver.on_closed(because)

    def asked(self, method: str) -> list[Frame]:
        """The requests of that method which the server saw."""
        return [sent.frame for sent in self.sent if sent.frame.method == method]

    def headers_of(self, method: str) -> dict[bytes, bytes]:
        return dict(next(sent.headers for sent in self.sent if sent.frame.method == method))

    def told(self) -> list[Frame]:
        """The answers and notices which the server got."""
        return [sent.frame for sent in self.sent if not jsonrpc.is_request(sent.frame)]

    def set_version(self, version: str) -> None:
        self.versions.append(version)

    def listen(self) -> None:
        self.listens += 1

    def pause(self, stream: Stream) -> None:
        self.paused.append((True, stream))

    def resume(self, stream: Stream) -> None:
        self.paused.append((False, stream))

    def drop_stream(self, stream: Stream) -> None:
        self.abandoned.append(stream)

    async def close(self) -> None:
        self.is_open = False

    def stderr_lines(self) -> Sequence[str]:
        return ("last words",)


class AnySchema:
    """A judge of schemas that finds fault only with what it was told to."""

    def __init__(self, faults: Mapping[str, str] | None = None) -> None:
        self.faulty = dict(faults or {})
        self.seen: list[dict[str, object]] = []

    async def faults(self, schemas: Mapping[str, object]) -> dict[str, str]:
        self.seen.append(dict(schemas))
        return {label: why for label, why in self.faulty.items() if label in schemas}


def _id(frame: Frame) -> int:
    assert isinstance(frame.id, int)
    return frame.id
