"""Drive a live server in a test as Comity would, without a gateway; needs `comity[sdk]`.

    async with Harness(server, enabled=["memory.*"]) as host:
        injections = await host.before("How is the greenhouse project?")
        assert "8-10 beds" in text_of(injections[0].content)

Rule 1: it reads as strictly as Comity does. What Comity would not take, it does not take.
Rule 2: it enforces what Comity enforces: what is not enabled is refused, hooks ask no model.
Rule 3: what the server said wrong is in `problems`, and fails the test at the end.
"""

import asyncio
import contextlib
import fnmatch
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any, Final, Self, cast

from msgspec import Raw

from comity.rules.live_policy import LivePolicy, enabled_of, required
from comity.sdk.harness_line import Era, Failed, Line, served
from comity.sdk.harness_parts import Kept, Models, Places
from comity.sdk.server import Server
from comity.wire import channels, checkpoints, features, hooks, inference, jsonrpc, mcp, pushes
from comity.wire.checkpoints import RolledBack
from comity.wire.contents import text_of
from comity.wire.errors import (
    FEATURE_NOT_ENABLED,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MalformedMessage,
)
from comity.wire.features import Bounds, Declared, FeatureSet, Scope, Use
from comity.wire.hooks import Injection
from comity.wire.inference import ModelInfo
from comity.wire.pushes import Push

__all__ = ["Failed", "Harness", "text_of"]

SECONDS: Final = 30.0
LOOK_SECONDS: Final = 0.05
MODEL: Final = ModelInfo("test-model", "harness", 200_000, ("tools",))


@dataclass(frozen=True, slots=True)
class Called:
    """What a tool gave back; `state` is what it said of its checkpoint."""

    text: str
    result: Mapping[str, Any]
    is_error: bool = False
    state: Mapping[str, Any] | None = None


class Harness:
    """A host for one server, in a test; use it in an `async with`.

    `enabled` and `disabled` are feature sets or families (`memory.*`), as an operator writes them.
    A server that is given as a command is started, and spoken to over its pipes. With
    `mcpl=False` it is a plain MCP client, to which nothing of all this exists.
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
        self.models = Models()
        self.state = Kept()
        self.places = Places()
        self.pushes: list[Push] = []
        self.elevations: list[Scope] = []
        self.problems: list[str] = []
        self.refused: list[tuple[str, str]] = []
        self.welcome: Mapping[str, Any] = {}
        self.declared: Declared | None = None
        self.policy = LivePolicy(tuple(enabled), tuple(disabled))
        self.model = MODEL
        self._server = server
        self._speaks = mcpl
        self.line = Line(era, seconds, features.OFFERED if mcpl else None)
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
            inference.REQUEST: self._infer,
            inference.MODEL: self._model,
            features.ELEVATE: self._elevate,
            channels.REGISTER: self._register,
            channels.LIST: self._list,
            channels.INCOMING: self._incoming,
        }

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(served(self._server, self.line))
        self.welcome = await self.line.greet()
        self.declared = features.declared_in(jsonrpc.to_raw(self.welcome.get("capabilities") or {}))
        if self._speaks and self.declared is not None:
            self.line.listen()
            await self._update()
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await self._stack.aclose()
        if self.problems and kind is None:
            raise AssertionError("the server said what no host takes: " + "; ".join(self.problems))

    # What a host decides.

    @property
    def enabled(self) -> frozenset[str]:
        return enabled_of(self.policy, self._sets)

    async def enable(self, *names: str) -> None:
        """Enable feature sets or families; the server is told at once."""
        await self._decide((*self.policy.enabled, *names), self._without(names))

    async def disable(self, *names: str) -> None:
        await self._decide(self.policy.enabled, (*self.policy.disabled, *names))

    async def bound(
        self, feature: str, *, allow: Iterable[str] = (), deny: Iterable[str] = ()
    ) -> None:
        """Say what a scoped feature set may reach."""
        scopes = {**self.policy.scopes, feature: Bounds(tuple(allow), tuple(deny))}
        self.policy = LivePolicy(self.policy.enabled, self.policy.disabled, scopes)
        await self._update()

    def approve(self, *labels: str) -> None:
        """Say yes when one of these is asked for; to all else it is no."""
        self._approved.extend(labels)

    # What a host asks.

    async def before(
        self, user: str | None, conversation: str = "conv-1", **more: Any
    ) -> tuple[Injection, ...]:
        """What the server would add before a model answers this."""
        params = {**self._turn(conversation), "userMessage": user, **more}
        if not self._using(Use.BEFORE):
            return ()
        said = await self._hooked(hooks.BEFORE, params)
        injected = hooks.injected_in(jsonrpc.to_raw(dict(said)))
        self._require(injected.feature, Use.BEFORE)
        return injected.injections

    async def after(
        self, user: str | None, answer: str, conversation: str = "conv-1", **more: Any
    ) -> str:
        """What is said in the end; who does not block is only told, and may take its time."""
        usage = {"inputTokens": 10, "outputTokens": 5}
        params = {**self._turn(conversation), "userMessage": user, "assistantMessage": answer}
        params = {**params, "usage": usage, **more}
        if not self._using(Use.AFTER):
            return answer
        if self.declared is None or not self.declared.blocks:
            await self.line.tell(hooks.AFTER, params)
            return answer
        said = await self._hooked(hooks.AFTER, params)
        rewritten = hooks.rewritten_in(jsonrpc.to_raw(dict(said)))
        self._require(rewritten.feature, Use.AFTER)
        return answer if rewritten.response is None else rewritten.response

    async def tools(self) -> dict[str, Mapping[str, Any]]:
        said = await self.line.request(mcp.LIST_TOOLS, {})
        return {str(each["name"]): each for each in said["tools"]}

    async def call(
        self, tool: str, arguments: Mapping[str, Any] | None = None, **more: Any
    ) -> Called:
        """Call a tool with what is kept of its feature set's state; `more` goes beside it."""
        feature = await self._feature_of(tool)
        carried = self.state.carried(feature) if self._speaks else {}
        params = {"name": tool, "arguments": dict(arguments or {}), **carried, **more}
        result = await self.line.request(mcp.CALL_TOOL, params)
        found = checkpoints.checkpoint_in(jsonrpc.members(jsonrpc.to_raw(dict(result))))
        if found is not None:
            self._note(self.state.keep(feature, found))
        content = cast("list[dict[str, Any]]", result.get("content") or [])
        text = "\n".join(str(each.get("text", "")) for each in content)
        return Called(text, result, result.get("isError") is True, result.get("state"))

    async def rollback(self, feature: str, checkpoint: str) -> RolledBack:
        """Have a feature set put back; what is kept here goes with it. Raises Failed."""
        asked = checkpoints.rollback(feature, checkpoint)
        said = await self.line.request(checkpoints.ROLLBACK, asked)
        rolled = checkpoints.rolled_back_in(jsonrpc.to_raw(dict(said)))
        if rolled.success:
            self.state.return_to(feature, checkpoint)
        return rolled

    async def publish(self, channel: str, text: str, conversation: str = "conv-1") -> str:
        """Have words delivered; gives the id that they have outside. Raises Failed."""
        content = [{"type": "text", "text": text}]
        params = {"channelId": channel, "content": content, "conversationId": conversation}
        said = await self.line.request(channels.PUBLISH, {**params, "stream": False})
        if said.get("delivered") is not True:
            raise Failed({"code": 0, "message": "it was not delivered"})
        return str(said.get("messageId") or "")

    async def open(self, type: str, address: Mapping[str, Any]) -> channels.Descriptor:
        params = {"type": type, "address": dict(address), "metadata": {}}
        said = await self.line.request(channels.OPEN, params)
        opened = channels.descriptor_in(jsonrpc.to_raw(said.get("channel")))
        self.places.known[opened.id] = opened
        return opened

    async def close(self, channel: str) -> bool:
        said = await self.line.request(channels.CLOSE, {"channelId": channel})
        self.places.known.pop(channel, None)
        return said.get("closed") is True

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Ask anything at all. Raises Failed."""
        return await self.line.request(method, params)

    async def tell(self, method: str, params: Mapping[str, Any]) -> None:
        await self.line.tell(method, params)

    def said(self, method: str) -> list[Mapping[str, Any]]:
        """The parameters of all that the server asked or told by this method, as they came."""
        frames = [each for each in self.line.said if each.get("method") == method]
        return [each.get("params") or {} for each in frames]

    async def until(self, happened: Callable[[], object], seconds: float | None = None) -> None:
        """Wait until something has happened, here or in the server. Raises TimeoutError."""
        async with asyncio.timeout(seconds or self._seconds):
            while not happened():
                # What happens in the server alone is told by nobody.
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._heard.wait(), LOOK_SECONDS)
                self._heard.clear()

    # What a server asks.

    async def _answer(
        self, method: str, params: Mapping[str, Any], id: str | int
    ) -> Mapping[str, Any]:
        answer = self._methods.get(method, _nothing) if self._speaks else _nothing
        try:
            return await answer(jsonrpc.to_raw(dict(params)), id)
        except MalformedMessage as problem:
            self.refused.append((method, str(problem)))
            # What is not enabled, or comes from within a hook, is refused and no more.
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
            elif method == channels.CHANGED:
                self.places.change(channels.changes_in(raw))
        except MalformedMessage as problem:
            self.problems.append(f"{method}: {problem}")
        self._heard.set()

    async def _pushed(self, params: Raw, id: str | int) -> Mapping[str, Any]:
        push = pushes.push_in("server", params)
        self._require(push.feature, Use.PUSH)
        if push.id in self._seen:
            return pushes.not_accepted("duplicate")
        self._seen.add(push.id)
        self.pushes.append(push)
        return pushes.accepted(f"inf-{push.id}")

    async def _infer(self, params: Raw, id: str | int) -> Mapping[str, Any]:
        wanted = inference.wanted_in(params)
        self._require(wanted.feature, Use.INFERENCE)
        if self._hooks:
            raise MalformedMessage("hook_loop: a hook of this server is pending", INVALID_REQUEST)
        answer = self.models.answer(wanted)
        if wanted.stream:
            for index, delta in enumerate(answer.pieces):
                await self.line.tell(inference.CHUNK, inference.chunk(id, index, delta))
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
        self._require_channels(Use.PUBLISH, Use.OBSERVE)
        found = channels.registered_in(params)
        self.places.known |= {each.id: each for each in found}
        return {"results": [{"channelId": each.id, "registered": True} for each in found]}

    async def _list(self, params: Raw, id: str | int) -> Mapping[str, Any]:
        self._require_channels(Use.PUBLISH, Use.OBSERVE)
        return self.places.listed()

    async def _incoming(self, params: Raw, id: str | int) -> Mapping[str, Any]:
        self._require_channels(Use.OBSERVE)
        return {"results": [self.places.take(*each) for each in channels.messages_in(params)]}

    # What follows.

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

    def _require(self, feature: str, use: Use) -> None:
        required(self._sets, self.enabled, feature, use)

    def _using(self, *uses: Use) -> bool:
        return any(self._sets[name].uses & set(uses) for name in self.enabled)

    def _require_channels(self, *uses: Use) -> None:
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
        told = features.update(sorted(self.enabled), disabled, self.policy.scopes)
        await self.line.tell(features.UPDATE, told)

    async def _changed(self, params: Raw) -> None:
        added, removed = features.changed_in(params)
        if self.declared is not None:
            kept = {name: each for name, each in self._sets.items() if name not in removed}
            self.declared = replace(self.declared, sets={**kept, **added})
            await self._update()


async def _nothing(params: Raw, id: str | int) -> Mapping[str, Any]:
    raise MalformedMessage("there is no such method here", METHOD_NOT_FOUND)
