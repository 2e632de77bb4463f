"""A scripted upstream server behind a network: slow, silent, answering by half, or broken.

It writes down each effect with the node that asked for it and the moment at which the node sent
the call. What a node has sent arrives even if the node dies meanwhile.
"""

import json
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from comity.mcp import jsonrpc, protocol
from comity.mcp.jsonrpc import Frame
from comity.mcp.protocol import Era, Stream
from comity.sessions.upstream import TransportListener
from comity.telemetry.tracing import Headers
from tests.simulation.loop import NODE, SimulationLoop

TOOLS: Final = ("write", "wipe", "look")
WORLD_CONTEXT: Final = copy_context()
"""A context outside of every node: what runs in it survives the death of all of them."""


@dataclass(frozen=True)
class Effect:
    """One execution of a tool by an upstream server."""

    server: str
    tool: str
    argument: str
    node: str
    sent_at: float
    lease_token: int


@dataclass
class UpstreamFaults:
    """How the servers behave now."""

    pause: float = 0.02
    silence_rate: float = 0.0
    half_answer_rate: float = 0.0
    break_rate: float = 0.0


@dataclass
class SimulatedUpstream:
    """All upstream servers, and what they did."""

    loop: SimulationLoop
    random: Random
    on_sent: Callable[[Effect], None]
    faults: UpstreamFaults = field(default_factory=UpstreamFaults)
    effects: list[Effect] = field(default_factory=list[Effect])

    def transport_factory(self, server: str, lease_token: int) -> "SimulatedTransportFactory":
        return SimulatedTransportFactory(self, server, lease_token)

    def run(self, effect: Effect) -> None:
        self.effects.append(effect)
        self.loop.note(f"{effect.server} ran {effect.tool} {effect.argument} for {effect.node}")


@dataclass(frozen=True)
class SimulatedTransportFactory:
    """Reaches one server from one node."""

    upstream: SimulatedUpstream
    server: str
    lease_token: int
    starts_process: bool = False

    def create_transport(self, era: Era) -> "SimulatedTransport":
        del era
        return SimulatedTransport(self)


class SimulatedTransport:
    """One connection of a node to a server of the modern version."""

    has_separate_streams = True
    has_exited_cleanly = False
    _listener: TransportListener
    _context: Context

    def __init__(self, factory: SimulatedTransportFactory) -> None:
        self._factory = factory
        self._upstream = factory.upstream
        self._is_open = False

    async def open(self, listener: TransportListener) -> None:
        self._listener, self._is_open = listener, True
        self._context = copy_context()

    def send(self, frame: Frame, stream: Stream, headers: Headers = ()) -> None:
        del stream, headers
        message = json.loads(jsonrpc.encode_frame(frame))
        upstream, effect = self._upstream, None
        if message.get("method") == protocol.CALL_TOOL:
            effect = self._effect_of(message["params"])
            upstream.on_sent(effect)
        upstream.loop.call_later(
            upstream.random.expovariate(1 / upstream.faults.pause),
            self._arrive,
            message,
            effect,
            context=WORLD_CONTEXT,
        )

    def _effect_of(self, params: dict[str, Any]) -> Effect:
        return Effect(
            self._factory.server,
            params["name"],
            params["arguments"]["n"],
            NODE.get(),
            self._upstream.loop.time(),
            self._factory.lease_token,
        )

    def _arrive(self, message: dict[str, Any], effect: Effect | None) -> None:
        upstream = self._upstream
        if not self._is_open and effect is None:
            return
        if effect is not None and upstream.random.random() < upstream.faults.break_rate:
            # Nobody can know whether the request arrived before.
            if upstream.random.random() < 0.5:
                upstream.run(effect)
            self._later(self._break)
            return
        if effect is not None:
            upstream.run(effect)
        reply = _reply_to(message)
        if reply is None or (
            effect is not None and upstream.random.random() < upstream.faults.silence_rate
        ):
            return
        answer = {"jsonrpc": "2.0", "id": message["id"], **reply}
        data = json.dumps(answer).encode()
        if effect is not None and upstream.random.random() < upstream.faults.half_answer_rate:
            data = data[: len(data) // 2]
        self._later(self._receive, data, message["id"])

    def _later(self, callback: Callable[..., None], *args: object) -> None:
        upstream = self._upstream
        pause = upstream.random.expovariate(1 / upstream.faults.pause)
        upstream.loop.call_later(pause, callback, *args, context=self._context)

    def _receive(self, data: bytes, stream: int) -> None:
        if self._is_open:
            self._listener.on_message(data, stream, 200)

    def _break(self) -> None:
        if self._is_open:
            self._is_open = False
            self._listener.on_closed("the connection was reset")

    def set_version(self, version: str) -> None:
        """One version is spoken."""

    def listen(self) -> None:
        """Nothing comes outside of requests."""

    def pause(self, stream: Stream) -> None:
        """Answers are short."""

    def resume(self, stream: Stream) -> None:
        """Answers are short."""

    def drop_stream(self, stream: Stream) -> None:
        """The request has left already."""

    async def close(self) -> None:
        self._is_open = False

    def stderr_lines(self) -> Sequence[str]:
        return ()


def _reply_to(message: dict[str, Any]) -> dict[str, object] | None:
    """Return the result or the error of a request; None for a notification."""
    if "id" not in message:
        return None
    result = _result_of(message)
    if result is None:
        return {"error": {"code": -32601, "message": "Method not found"}}
    return {"result": {**result, "resultType": "complete"}}


def _result_of(message: dict[str, Any]) -> dict[str, object] | None:
    schema = {"type": "object", "properties": {"n": {"type": "string"}}}
    match message.get("method"):
        case protocol.DISCOVER:
            return {
                "supportedVersions": [protocol.LATEST_MODERN],
                "capabilities": {"tools": {}},
            }
        case protocol.LIST_TOOLS:
            tools = [{"name": name, "inputSchema": schema} for name in TOOLS]
            return {"tools": tools, "ttlMs": 3_600_000, "cacheScope": "public"}
        case protocol.CALL_TOOL:
            return {"content": [{"type": "text", "text": message["params"]["arguments"]["n"]}]}
        case _:
            return None
