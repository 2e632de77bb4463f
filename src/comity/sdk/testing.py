"""Drives a live server in a test as Comity would, without a gateway; needs `comity[sdk]`."""

import asyncio
import contextlib
import fnmatch
import itertools
import logging
import re
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, Self, cast

import jsonpatch
from mcp import MCPError
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.shared.memory import create_client_server_memory_streams
from mcp.shared.message import SessionMessage
from mcp.types import jsonrpc_message_adapter
from msgspec import Raw

from comity.errors import (
    FEATURE_NOT_ENABLED,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MalformedMessage,
)
from comity.inference import messages
from comity.inference.messages import FinishReason, InferenceParams, ModelInfo, TokenUsage, text_of
from comity.live.channels import model
from comity.live.channels.model import ChannelChanges, ChannelDescriptor, IncomingMessage
from comity.live.features import LivePolicy, enabled_of, require_feature_set
from comity.live.hooks import model as hooks
from comity.live.hooks.model import HookInjection
from comity.live.pushes import model as pushes
from comity.live.pushes.model import Push
from comity.live.state import model as checkpoints
from comity.live.state.model import RollbackResult, StateCheckpoint
from comity.mcp import jsonrpc, protocol
from comity.mcp import mcpl as features
from comity.mcp import mcpl as reverse
from comity.mcp.mcpl import FeatureSet, FeatureUse, McplDeclaration, ScopeBounds, ScopeClaim
from comity.sdk.server import Server

log = logging.getLogger(__name__)

type Era = Literal["handshake", "modern"]
type Frame = dict[str, Any]
type AnswerRequest = Callable[[str, Mapping[str, Any], str | int], Awaitable[Mapping[str, Any]]]
type Hear = Callable[[str, Mapping[str, Any]], Awaitable[None]]

WE: Final = {"name": "comity-harness", "version": "1"}
_NOTHING: Final[Mapping[str, Any]] = {}


class HarnessServerError(MCPError):
    """The server answered with an error."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        code, message = error.get("code"), str(error.get("message", ""))
        super().__init__(code if isinstance(code, int) else 0, message, error.get("data"))


class HarnessConnection:
    """The messages to and from one server; `answer` and `hear` are the handlers of its host."""

    def __init__(self, era: Era, seconds: float, offered: Mapping[str, Any] | None) -> None:
        self.answer: AnswerRequest = _nobody
        self.hear: Hear = _silent
        # The requests and notifications of the server, in their legacy form.
        self.said: list[Frame] = []
        self._era = era
        self._seconds = seconds
        self._offered = offered
        self._ids = itertools.count(1)
        self._pending: dict[object, asyncio.Future[Frame]] = {}
        self._tasks: set[asyncio.Future[None]] = set()
        self._write: Any = None

    async def greet(self) -> Mapping[str, Any]:
        """Introduce the host; return the answer of the server."""
        if self._era == "modern":
            return await self.request(protocol.DISCOVER, _NOTHING)
        mcpl = {} if self._offered is None else {"experimental": {features.KEY: self._offered}}
        said = await self.request(
            protocol.INITIALIZE,
            {"protocolVersion": protocol.LATEST_HANDSHAKE, "capabilities": mcpl, "clientInfo": WE},
        )
        await self._send({"method": protocol.INITIALIZED})
        return said

    def listen(self) -> None:
        """Listen for requests of a modern server; a legacy connection needs no such call."""
        if self._era == "modern" and self._offered is not None:
            self._start(self._listen())

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Raises HarnessServerError, and TimeoutError without an answer."""
        async with asyncio.timeout(self._seconds):
            return await self._request(method, params)

    async def tell(self, method: str, params: Mapping[str, Any]) -> None:
        if self._era == "modern":
            await self.request(method, params)
        else:
            await self._send({"method": method, "params": dict(params)})

    async def run(self, read: Any, write: Any) -> None:
        """Read messages until the server closes the connection."""
        self._write = write
        async for item in read:
            if isinstance(item, SessionMessage):
                dumped = item.message.model_dump(by_alias=True, mode="json", exclude_unset=True)
                self._take(dumped)
        for waiting in self._pending.values():
            if not waiting.done():
                waiting.set_exception(
                    HarnessServerError({"code": 0, "message": "the server has gone"})
                )

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _listen(self) -> None:
        await self._request(reverse.LISTEN, _NOTHING)

    async def _request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        id = next(self._ids)
        waiting = self._pending[id] = asyncio.get_running_loop().create_future()
        try:
            await self._send({"id": id, "method": method, "params": self._worded(params)})
            frame = await waiting
        finally:
            self._pending.pop(id, None)
        if "error" in frame:
            raise HarnessServerError(frame["error"])
        return frame.get("result") or _NOTHING

    def _worded(self, params: Mapping[str, Any]) -> dict[str, Any]:
        if self._era != "modern":
            return dict(params)
        mcpl = {} if self._offered is None else {features.EXTENSION_KEY: self._offered}
        meta = {
            protocol.PROTOCOL_VERSION: protocol.LATEST_MODERN,
            protocol.CLIENT_CAPABILITIES: {"extensions": mcpl},
            protocol.CLIENT_INFO: WE,
        }
        return {**params, "_meta": meta}

    def _take(self, frame: Frame) -> None:
        method, id = frame.get("method"), frame.get("id")
        params = cast("Mapping[str, Any]", frame.get("params") or _NOTHING)
        if method is None:
            waiting = self._pending.get(id)
            if waiting is not None and not waiting.done():
                waiting.set_result(frame)
        elif id is not None:
            self.said.append(frame)
            self._start(self._answered(method, params, id))
        elif method == reverse.REVERSE_REQUEST:
            self.said.append(dict(params))
            self._start(self._respond(params))
        elif method == reverse.REVERSE_NOTIFICATION:
            self.said.append(dict(params))
            self._start(self.hear(str(params.get("method")), params.get("params") or _NOTHING))
        else:
            self.said.append(frame)
            self._start(self.hear(method, params))

    async def _answered(self, method: str, params: Mapping[str, Any], id: str | int) -> None:
        await self._send({"id": id, **await self._outcome(method, params, id)})

    async def _respond(self, carried: Mapping[str, Any]) -> None:
        id = cast("str", carried.get("id"))
        params = carried.get("params") or _NOTHING
        outcome = await self._outcome(str(carried.get("method")), params, id)
        await self.request(reverse.RESPOND, {"id": id, **outcome})

    async def _outcome(self, method: str, params: Mapping[str, Any], id: str | int) -> Frame:
        try:
            return {"result": dict(await self.answer(method, params, id))}
        except MalformedMessage as problem:
            return {"error": {"code": problem.fault.code, "message": str(problem)}}
        except Exception as bug:
            log.exception("the harness failed to answer %s", method)
            return {"error": {"code": INTERNAL_ERROR.code, "message": repr(bug)}}

    async def _send(self, frame: Frame) -> None:
        message = jsonrpc_message_adapter.validate_python({"jsonrpc": "2.0", **frame})
        await self._write.send(SessionMessage(message))

    def _start(self, doing: Any) -> None:
        task = asyncio.ensure_future(doing)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Future[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            # Retrieve the exception, so that asyncio does not log it.
            task.exception()


@asynccontextmanager
async def run_server(
    server: Server | Sequence[str], line: HarnessConnection
) -> AsyncGenerator[None]:
    """Run a server object in this process, or a command over stdio, until the block ends."""
    begun, stop = asyncio.Event(), asyncio.Event()
    run = _object if isinstance(server, Server) else _command
    task = asyncio.ensure_future(run(cast("Any", server), line, begun, stop))
    waiting = asyncio.ensure_future(begun.wait())
    try:
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task
        yield
    finally:
        waiting.cancel()
        line.close()
        stop.set()
        await task


async def _object(
    server: Server, line: HarnessConnection, begun: asyncio.Event, stop: asyncio.Event
) -> None:
    # The SDK's own server within has no public name.
    inner = cast("Any", server.mcp)._lowlevel_server
    async with server.running(), create_client_server_memory_streams() as (ours, its):
        options = inner.create_initialization_options()
        serving = asyncio.ensure_future(inner.run(*its, options))
        reading = asyncio.ensure_future(line.run(*ours))
        begun.set()
        await stop.wait()
        for task in (serving, reading):
            task.cancel()
        await asyncio.gather(serving, reading, return_exceptions=True)


async def _command(
    command: Sequence[str], line: HarnessConnection, begun: asyncio.Event, stop: asyncio.Event
) -> None:
    program, *rest = command
    params = StdioServerParameters(command=program or sys.executable, args=rest)
    async with stdio_client(params) as (read, write):
        reading = asyncio.ensure_future(line.run(read, write))
        begun.set()
        await stop.wait()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def _nobody(method: str, params: Mapping[str, Any], id: str | int) -> Mapping[str, Any]:
    raise MalformedMessage(f"there is no {method}", METHOD_NOT_FOUND)


async def _silent(method: str, params: Mapping[str, Any]) -> None:
    return None


@dataclass(frozen=True, slots=True)
class HarnessModelReply:
    """A reply that the model gives."""

    text: str
    finish: FinishReason = FinishReason.END

    @property
    def pieces(self) -> list[str]:
        return re.findall(r"\S+\s*|\s+", self.text)

    def told(self) -> dict[str, object]:
        usage = TokenUsage(10, len(self.pieces))
        return messages.build_inference_result(self.text, "test-model", self.finish, usage)


@dataclass(slots=True)
class HarnessModel:
    """A model with prepared replies; `asked` holds the requests to it."""

    asked: list[InferenceParams] = field(default_factory=list[InferenceParams])
    answers: list[HarnessModelReply] = field(default_factory=list[HarnessModelReply])

    def say(self, *texts: str) -> None:
        """Add replies, which are used in order; the last one is repeated."""
        self.answers.extend(map(HarnessModelReply, texts))

    def answer(self, wanted: InferenceParams) -> HarnessModelReply:
        self.asked.append(wanted)
        if not self.answers:
            reason = "the model of the test has no reply: add one with `models.say`"
            raise MalformedMessage(reason, INTERNAL_ERROR)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    @property
    def last(self) -> str:
        """The text of the last request."""
        return "\n".join(text_of(each.content) for each in self.asked[-1].messages)


@dataclass(slots=True)
class HarnessCheckpointStore:
    """The checkpoints of each feature set, and the current one of each. (MCPL §8)"""

    data: dict[tuple[str, str], Any] = field(default_factory=dict[tuple[str, str], Any])
    parents: dict[tuple[str, str], str | None] = field(
        default_factory=dict[tuple[str, str], str | None]
    )
    current: dict[str, str] = field(default_factory=dict[str, str])

    def carried(self, feature: str) -> dict[str, Any]:
        """The state for a call: the data if they are known, else the name. (§8.4)"""
        at = self.current.get(feature)
        if at is None:
            return {}
        return (
            {"state": self.data[feature, at]} if (feature, at) in self.data else {"checkpoint": at}
        )

    def keep(self, feature: str, found: StateCheckpoint) -> str | None:
        """Keep a checkpoint, and return its problem. Its name is kept in any case. (D-67)"""
        key = (feature, found.name)
        self.current[feature], self.parents[key] = found.name, found.parent
        if found.parent is not None and (feature, found.parent) not in self.parents:
            return f"state: there is no checkpoint {found.parent!r:.80}"
        if found.data is not None:
            self.data[key] = jsonrpc.decode_value(found.data)
        elif found.patch is not None:
            before = self.data.get((feature, found.parent or ""))
            operations = cast("list[dict[str, Any]]", jsonrpc.decode_value(found.patch))
            try:
                self.data[key] = jsonpatch.JsonPatch(operations).apply(before)
            except jsonpatch.JsonPatchException as problem:
                return f"state: a patch cannot be applied: {problem}"
        return None

    def return_to(self, feature: str, checkpoint: str) -> None:
        self.current[feature] = checkpoint


@dataclass(slots=True)
class HarnessChannelRegistry:
    """Channels that the server registered, and their incoming messages."""

    known: dict[str, ChannelDescriptor] = field(default_factory=dict[str, ChannelDescriptor])
    heard: list[IncomingMessage] = field(default_factory=list[IncomingMessage])

    def change(self, changes: ChannelChanges) -> None:
        for each in (*changes.added, *changes.updated):
            self.known[each.id] = each
        for id in changes.removed:
            self.known.pop(id, None)

    def take(self, named: str, found: IncomingMessage | MalformedMessage) -> Mapping[str, Any]:
        if isinstance(found, MalformedMessage):
            return {"messageId": named, "accepted": False, "reason": str(found)}
        if found.channel not in self.known:
            return {"messageId": named, "accepted": False, "reason": "Unknown channel"}
        self.heard.append(found)
        conversation = f"conv-{found.channel}"
        return {"messageId": named, "accepted": True, "conversationId": conversation}

    def listed(self) -> Mapping[str, Any]:
        return {"channels": [_described(each) for each in self.known.values()]}


def _described(each: ChannelDescriptor) -> dict[str, Any]:
    told = {"id": each.id, "type": each.type, "label": each.label}
    return {**told, "direction": str(each.direction), "address": each.address}


__all__ = ["Harness", "HarnessServerError", "text_of"]

SECONDS: Final = 30.0
LOOK_SECONDS: Final = 0.05
MODEL: Final = ModelInfo("test-model", "harness", 200_000, ("tools",))


@dataclass(frozen=True, slots=True)
class HarnessCallResult:
    """The result of a tool call; `state` is its member of that name."""

    text: str
    result: Mapping[str, Any]
    is_error: bool = False
    state: Mapping[str, Any] | None = None


class Harness:
    """A host for one server, in a test; use it in an `async with`.

    `enabled` and `disabled` are feature sets or families (`memory.*`), as an operator writes them.
    A server that is given as a command is started, and uses stdio. With `mcpl=False` the harness
    is a plain MCP client without MCPL.
    """

    def __init__(
        self,
        server: Server | Sequence[str],
        enabled: Iterable[str] = (),
        disabled: Iterable[str] = (),
        *,
        era: Era = "handshake",
        mcpl: bool = True,
        seconds: float = SECONDS,
    ) -> None:
        self.models = HarnessModel()
        self.state = HarnessCheckpointStore()
        self.places = HarnessChannelRegistry()
        self.pushes: list[Push] = []
        self.elevations: list[ScopeClaim] = []
        self.problems: list[str] = []
        self.refused: list[tuple[str, str]] = []
        self.welcome: Mapping[str, Any] = {}
        self.declared: McplDeclaration | None = None
        self.policy = LivePolicy(tuple(enabled), tuple(disabled))
        self.model = MODEL
        self._server = server
        self._speaks = mcpl
        self.line = HarnessConnection(era, seconds, features.OFFERED if mcpl else None)
        self.line.answer, self.line.hear = self._answer, self._hear
        self._seconds = seconds
        self._approved: list[str] = []
        self._seen: set[str] = set()
        self._turns = 0
        self._hooks = 0
        self._heard = asyncio.Event()
        self._stack = AsyncExitStack()
        self._methods: dict[str, Callable[[Raw, str | int], Awaitable[Mapping[str, Any]]]] = {
            pushes.PUSH: self._pushed,
            messages.REQUEST: self._infer,
            messages.MODEL: self._model,
            features.ELEVATE: self._elevate,
            model.REGISTER: self._register,
            model.LIST: self._list,
            model.INCOMING: self._incoming,
        }

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(run_server(self._server, self.line))
        self.welcome = await self.line.greet()
        self.declared = features.declared_in(jsonrpc.to_raw(self.welcome.get("capabilities") or {}))
        if self._speaks and self.declared is not None:
            self.line.listen()
            await self._update()
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await self._stack.aclose()
        if self.problems and kind is None:
            raise AssertionError(
                "the server sent messages that no host accepts: " + "; ".join(self.problems)
            )

    # Decisions of a host.

    @property
    def enabled(self) -> frozenset[str]:
        return enabled_of(self.policy, self._sets)

    async def enable(self, *names: str) -> None:
        """Enable feature sets or families, and notify the server at once."""
        await self._decide((*self.policy.enabled, *names), self._without(names))

    async def disable(self, *names: str) -> None:
        await self._decide(self.policy.enabled, (*self.policy.disabled, *names))

    async def bound(
        self, feature: str, *, allow: Iterable[str] = (), deny: Iterable[str] = ()
    ) -> None:
        """Set the scope bounds of a feature set."""
        scopes = {**self.policy.scopes, feature: ScopeBounds(tuple(allow), tuple(deny))}
        self.policy = LivePolicy(self.policy.enabled, self.policy.disabled, scopes)
        await self._update()

    def approve(self, *labels: str) -> None:
        """Approve elevations to these labels; all others are denied."""
        self._approved.extend(labels)

    # Requests of a host.

    async def before(
        self, user: str | None, conversation: str = "conv-1", **more: Any
    ) -> tuple[HookInjection, ...]:
        """The injections of the server before a model answers a message."""
        params = {**self._turn(conversation), "userMessage": user, **more}
        if not self._using(FeatureUse.BEFORE):
            return ()
        said = await self._hooked(hooks.BEFORE, params)
        injected = hooks.injected_in(jsonrpc.to_raw(dict(said)))
        self._require(injected.feature, FeatureUse.BEFORE)
        return injected.injections

    async def after(
        self, user: str | None, answer: str, conversation: str = "conv-1", **more: Any
    ) -> str:
        """The final reply. Only blocking hooks of the server can change it."""
        usage = {"inputTokens": 10, "outputTokens": 5}
        params = {**self._turn(conversation), "userMessage": user, "assistantMessage": answer}
        params = {**params, "usage": usage, **more}
        if not self._using(FeatureUse.AFTER):
            return answer
        if self.declared is None or not self.declared.blocks:
            await self.line.tell(hooks.AFTER, params)
            return answer
        said = await self._hooked(hooks.AFTER, params)
        rewritten = hooks.rewritten_in(jsonrpc.to_raw(dict(said)))
        self._require(rewritten.feature, FeatureUse.AFTER)
        return answer if rewritten.response is None else rewritten.response

    async def tools(self) -> dict[str, Mapping[str, Any]]:
        said = await self.line.request(protocol.LIST_TOOLS, {})
        return {str(each["name"]): each for each in said["tools"]}

    async def call(
        self, tool: str, arguments: Mapping[str, Any] | None = None, **more: Any
    ) -> HarnessCallResult:
        """Call a tool with the state of its feature set; `more` are further parameters."""
        feature = await self._feature_of(tool)
        carried = self.state.carried(feature) if self._speaks else {}
        params = {"name": tool, "arguments": dict(arguments or {}), **carried, **more}
        result = await self.line.request(protocol.CALL_TOOL, params)
        found = checkpoints.checkpoint_in(jsonrpc.decode_members(jsonrpc.to_raw(dict(result))))
        if found is not None:
            self._note(self.state.keep(feature, found))
        content = cast("list[dict[str, Any]]", result.get("content") or [])
        text = "\n".join(str(each.get("text", "")) for each in content)
        return HarnessCallResult(text, result, result.get("isError") is True, result.get("state"))

    async def rollback(self, feature: str, checkpoint: str) -> RollbackResult:
        """Roll a feature set and its kept state back. Raises HarnessServerError."""
        asked = checkpoints.build_rollback_params(feature, checkpoint)
        said = await self.line.request(checkpoints.ROLLBACK, asked)
        rolled = checkpoints.rolled_back_in(jsonrpc.to_raw(dict(said)))
        if rolled.success:
            self.state.return_to(feature, checkpoint)
        return rolled

    async def publish(self, channel: str, text: str, conversation: str = "conv-1") -> str:
        """Publish a text; return the id of the delivered message. Raises HarnessServerError."""
        content = [{"type": "text", "text": text}]
        params = {"channelId": channel, "content": content, "conversationId": conversation}
        said = await self.line.request(model.PUBLISH, {**params, "stream": False})
        if said.get("delivered") is not True:
            raise HarnessServerError({"code": 0, "message": "it was not delivered"})
        return str(said.get("messageId") or "")

    async def open(self, type: str, address: Mapping[str, Any]) -> model.ChannelDescriptor:
        params = {"type": type, "address": dict(address), "metadata": {}}
        said = await self.line.request(model.OPEN, params)
        opened = model.descriptor_in(jsonrpc.to_raw(said.get("channel")))
        self.places.known[opened.id] = opened
        return opened

    async def close(self, channel: str) -> bool:
        said = await self.line.request(model.CLOSE, {"channelId": channel})
        self.places.known.pop(channel, None)
        return said.get("closed") is True

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send any request. Raises HarnessServerError."""
        return await self.line.request(method, params)

    async def tell(self, method: str, params: Mapping[str, Any]) -> None:
        await self.line.tell(method, params)

    def said(self, method: str) -> list[Mapping[str, Any]]:
        """The parameters of all requests and notifications of this method, in order."""
        frames = [each for each in self.line.said if each.get("method") == method]
        return [each.get("params") or {} for each in frames]

    async def until(self, happened: Callable[[], object], seconds: float | None = None) -> None:
        """Wait until something has happened, here or in the server. Raises TimeoutError."""
        async with asyncio.timeout(seconds or self._seconds):
            while not happened():
                # The harness gets no signal of changes within the server.
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._heard.wait(), LOOK_SECONDS)
                self._heard.clear()

    # Requests of a server.

    async def _answer(
        self, method: str, params: Mapping[str, Any], id: str | int
    ) -> Mapping[str, Any]:
        answer = self._methods.get(method, _nothing) if self._speaks else _nothing
        try:
            return await answer(jsonrpc.to_raw(dict(params)), id)
        except MalformedMessage as problem:
            self.refused.append((method, str(problem)))
            # A request without an enabled set, or from within a hook, is no problem of the test.
            if problem.fault.category != "security" and problem.fault is not INVALID_REQUEST:
                self.problems.append(f"{method}: {problem}")
            raise
        finally:
            self._heard.set()

    async def _hear(self, method: str, params: Mapping[str, Any]) -> None:
        raw = jsonrpc.to_raw(dict(params))
        try:
            if method == features.CHANGED:
                await self._changed(raw)
            elif method == model.CHANGED:
                self.places.change(model.changes_in(raw))
        except MalformedMessage as problem:
            self.problems.append(f"{method}: {problem}")
        self._heard.set()

    async def _pushed(self, params: Raw, id: str | int) -> Mapping[str, Any]:
        push = pushes.push_in("server", params)
        self._require(push.feature, FeatureUse.PUSH)
        if push.id in self._seen:
            return pushes.build_push_refusal("duplicate")
        self._seen.add(push.id)
        self.pushes.append(push)
        return pushes.build_push_result(f"inf-{push.id}")

    async def _infer(self, params: Raw, id: str | int) -> Mapping[str, Any]:
        wanted = messages.inference_params_in(params)
        self._require(wanted.feature, FeatureUse.INFERENCE)
        if self._hooks:
            raise MalformedMessage("hook_loop: a hook of this server is pending", INVALID_REQUEST)
        answer = self.models.answer(wanted)
        if wanted.stream:
            for index, delta in enumerate(answer.pieces):
                await self.line.tell(messages.CHUNK, messages.build_chunk(id, index, delta))
        return answer.told()

    async def _model(self, params: Raw, id: str | int) -> Mapping[str, Any]:
        return self.model.on_wire()

    async def _elevate(self, params: Raw, id: str | int) -> Mapping[str, Any]:
        named, scope = features.elevation_in(params)
        found = self._sets.get(named)
        if found is None or named not in self.enabled or not found.is_scoped:
            raise MalformedMessage("Feature set not enabled", FEATURE_NOT_ENABLED)
        self.elevations.append(scope)
        if any(fnmatch.fnmatchcase(scope.label, each) for each in self._approved):
            return {"approved": True, "payload": dict(scope.payload)}
        return {"approved": False, "reason": "the test does not approve of it"}

    async def _register(self, params: Raw, id: str | int) -> Mapping[str, Any]:
        self._require_channels(FeatureUse.PUBLISH, FeatureUse.OBSERVE)
        found = model.registered_in(params)
        self.places.known |= {each.id: each for each in found}
        return {"results": [{"channelId": each.id, "registered": True} for each in found]}

    async def _list(self, params: Raw, id: str | int) -> Mapping[str, Any]:
        self._require_channels(FeatureUse.PUBLISH, FeatureUse.OBSERVE)
        return self.places.listed()

    async def _incoming(self, params: Raw, id: str | int) -> Mapping[str, Any]:
        self._require_channels(FeatureUse.OBSERVE)
        return {"results": [self.places.take(*each) for each in model.messages_in(params)]}

    # Helpers.

    @property
    def _sets(self) -> Mapping[str, FeatureSet]:
        return {} if self.declared is None else self.declared.sets

    def _turn(self, conversation: str) -> dict[str, Any]:
        self._turns += 1
        turn = {"inferenceId": f"inf-{self._turns}", "conversationId": conversation}
        return {**turn, "turnIndex": self._turns - 1, "model": self.model.on_wire()}

    async def _hooked(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        self._hooks += 1
        try:
            return await self.line.request(method, params)
        finally:
            self._hooks -= 1

    def _require(self, feature: str, use: FeatureUse) -> None:
        require_feature_set(self._sets, self.enabled, feature, use)

    def _using(self, *uses: FeatureUse) -> bool:
        return any(self._sets[name].uses & set(uses) for name in self.enabled)

    def _require_channels(self, *uses: FeatureUse) -> None:
        if not self._using(*uses):
            raise MalformedMessage("Feature set not enabled", FEATURE_NOT_ENABLED)

    async def _feature_of(self, tool: str) -> str:
        found = (await self.tools()).get(tool, {})
        meta = cast("Mapping[str, Any]", found.get("_meta") or {})
        return str(meta.get("featureSet", ""))

    def _note(self, problem: str | None) -> None:
        if problem is not None:
            self.problems.append(problem)

    def _without(self, names: Iterable[str]) -> tuple[str, ...]:
        gone = set(names)
        return tuple(each for each in self.policy.disabled if each not in gone)

    async def _decide(self, enabled: tuple[str, ...], disabled: tuple[str, ...]) -> None:
        self.policy = LivePolicy(enabled, disabled, self.policy.scopes)
        await self._update()

    async def _update(self) -> None:
        disabled = sorted(self._sets.keys() - self.enabled)
        told = features.feature_update_params(sorted(self.enabled), disabled, self.policy.scopes)
        await self.line.tell(features.UPDATE, told)

    async def _changed(self, params: Raw) -> None:
        added, removed = features.changed_in(params)
        if self.declared is not None:
            kept = {name: each for name, each in self._sets.items() if name not in removed}
            self.declared = replace(self.declared, sets={**kept, **added})
            await self._update()


async def _nothing(params: Raw, id: str | int) -> Mapping[str, Any]:
    raise MalformedMessage("there is no such method here", METHOD_NOT_FOUND)
