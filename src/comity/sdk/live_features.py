"""One feature set of a live server: hooks, tools, state, pushes and models. (MCPL §6)"""

import asyncio
import copy
import hashlib
import json
import logging
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NoReturn, Protocol

import jsonpatch
from mcp import MCPError

from comity.errors import (
    CHECKPOINT_UNKNOWN,
    FEATURE_NOT_ENABLED,
    INTERNAL_ERROR,
    MalformedMessage,
    Misconfigured,
)
from comity.live.pushes import model
from comity.mcp import jsonrpc, mcpl
from comity.mcp.mcpl import FeatureUse, ScopeBounds, ScopeClaim
from comity.sdk.live_hosts import (
    HostConnection,
    HostRefusal,
    HostRequestFailure,
    HostUnavailable,
    McplHost,
    McplHostRegistry,
    new_id,
)
from comity.sdk.live_inference import (
    HOOK,
    LONGEST,
    FeatureHookRun,
    HostInferenceClient,
    HostInferenceRequest,
    Messages,
    OnPiece,
    refuse_in_hook,
)
from comity.sdk.live_types import (
    HostElevationResult,
    HostPushResult,
    Injection,
    Reply,
    Rewrite,
    Saying,
    Turn,
    blocks_of,
    elevated_in,
    encode_injections,
    pushed_in,
    turn_in,
)
from comity.sdk.mgp_server import Security

MOST_KNOWN: Final = 1_000
"""Checkpoints of a feature set that are remembered by name."""


class MissingCheckpointError(MCPError):
    """The error of a rollback to a checkpoint that does not exist any more. (§8.7)"""

    def __init__(self, checkpoint: str) -> None:
        data = {"checkpoint": checkpoint}
        super().__init__(CHECKPOINT_UNKNOWN.code, "Checkpoint not found", data)


class ServerCheckpointStore[T]:
    """The newest checkpoints that a server keeps itself, by name. (§8.7)"""

    def __init__(self, most: int = 100) -> None:
        self._maximum = most
        self._kept: OrderedDict[str, T] = OrderedDict()

    def keep(self, value: T, name: str | None = None) -> str:
        """Keep a value, and return the name of its checkpoint."""
        named = name or new_checkpoint()
        self._kept[named] = value
        while len(self._kept) > self._maximum:
            self._kept.popitem(last=False)
        return named

    def __getitem__(self, name: str) -> T:
        """Raises MissingCheckpointError for a checkpoint that is not kept any more."""
        try:
            return self._kept[name]
        except KeyError:
            raise MissingCheckpointError(name) from None

    def __contains__(self, name: object) -> bool:
        return name in self._kept

    def __len__(self) -> int:
        return len(self._kept)


class CheckpointLineage:
    """The digests of the checkpoints of one feature set that this process remembers."""

    def __init__(self) -> None:
        self._holds: OrderedDict[str, bytes] = OrderedDict()
        self._newest: dict[bytes, str] = {}

    def note(self, checkpoint: str, data: object) -> None:
        digest = _digest(data)
        self._holds[checkpoint] = digest
        self._holds.move_to_end(checkpoint)
        self._newest[digest] = checkpoint
        if len(self._holds) > MOST_KNOWN:
            dropped, digest = self._holds.popitem(last=False)
            if self._newest.get(digest) == dropped:
                del self._newest[digest]

    def returned(self, checkpoint: str) -> None:
        """Make a checkpoint the current one of those with the same data, after a rollback."""
        digest = self._holds.get(checkpoint)
        if digest is not None:
            self._newest[digest] = checkpoint

    def holding(self, data: object) -> str | None:
        return self._newest.get(_digest(data))


class FeatureState:
    """The state of one call. Change `data`, or name a checkpoint of your own with `mark`."""

    def __init__(self, data: Any, checkpoint: str | None, *, is_kept: bool) -> None:
        self.data: Any = data
        self.checkpoint = checkpoint
        self._before: Any = copy.deepcopy(data)
        # Whether the host had these data, so that a patch of them means something to it.
        self._is_kept = is_kept
        self._mark: str | None = None

    def mark(self, checkpoint: str | None = None) -> str:
        """Name a state that the server itself keeps; the host stores only its name."""
        self._mark = checkpoint or new_checkpoint()
        return self._mark

    @property
    def has_changed(self) -> bool:
        return self._mark is not None or self._has_other_data

    @property
    def _has_other_data(self) -> bool:
        # As JSON has it: there true is not 1, whatever Python says.
        return _spelled(self.data) != _spelled(self._before)

    def told(self) -> dict[str, Any] | None:
        """The `state` member of the call's result; None without a change. (§8.2, §8.3)"""
        if not self.has_changed:
            return None
        named = self._mark or new_checkpoint()
        told: dict[str, Any] = {"checkpoint": named, "parent": self.checkpoint}
        if not self._has_other_data:
            return told
        whole = jsonrpc.to_json(self.data)
        if self._is_kept and self.checkpoint is not None:
            patch = jsonpatch.make_patch(self._before, self.data).patch
            if len(jsonrpc.to_json(patch)) < len(whole):
                return {**told, "patch": patch}
        return {**told, "data": self.data}


class FeatureStateTracker:
    """The state of one feature set: from a call's parameters to the member of its result."""

    def __init__(self, initial: object) -> None:
        self._initial = initial
        self.lineage = CheckpointLineage()
        self.is_opaque = False

    def opened(self, params: Mapping[str, Any]) -> FeatureState:
        """The state that the host sent with a call. (§8.4)"""
        named = params.get("checkpoint")
        checkpoint = named if isinstance(named, str) else None
        if "state" not in params:
            return FeatureState(copy.deepcopy(self._initial), checkpoint, is_kept=False)
        data = copy.deepcopy(params["state"])
        return FeatureState(data, checkpoint or self.lineage.holding(data), is_kept=True)

    def held(self, kept: object) -> FeatureState:
        """The state that the connection keeps for a client without MCPL, or the initial one."""
        data = self._initial if kept is None else kept
        return FeatureState(copy.deepcopy(data), None, is_kept=False)

    def closed(self, state: FeatureState) -> dict[str, Any] | None:
        told = state.told()
        if told is not None:
            if "data" in told or "patch" in told:
                self.lineage.note(told["checkpoint"], state.data)
            else:
                self.is_opaque = True
        return told


def new_checkpoint() -> str:
    return f"chk_{secrets.token_hex(8)}"


def _digest(data: object) -> bytes:
    return hashlib.sha256(_spelled(data).encode()).digest()


def _spelled(data: object) -> str:
    """Canonical JSON: equal data have the same text, in any order of their members."""
    try:
        return json.dumps(data, sort_keys=True, separators=(",", ":"))
    except (TypeError, ValueError):
        raise Misconfigured("the state of a feature set is JSON") from None


PUSH_SECONDS: Final = 20.0
MOST_TRIES: Final = 3
A_LONG_WAIT: Final = timedelta(minutes=10)
"""The default time for a person to answer."""

type Before = Callable[[Turn], Awaitable[str | Injection | list[Injection] | Saying | None]]
type After = Callable[[Turn], Awaitable[str | Rewrite | None]]
type Rollback = Callable[[str], Awaitable[bool | str | None]]


class ToolDecorator(Protocol):
    """Makes a tool of a function."""

    def __call__(self, security: Security | None, **options: Any) -> Callable[[Any], Any]: ...


@dataclass(slots=True)
class FeatureCallContext:
    """The call in which a tool runs."""

    feature: str
    host: McplHost | None
    way: HostConnection | None
    state: FeatureState | None
    scope: ScopeClaim | None


CALL: ContextVar[FeatureCallContext | None] = ContextVar("comity_live_call", default=None)


@dataclass(frozen=True, slots=True)
class FeatureDependencies:
    """The services that all feature sets of one server use."""

    hosts: McplHostRegistry
    inferring: HostInferenceClient
    tools: ToolDecorator


@dataclass(frozen=True, slots=True)
class FeatureOptions:
    """The options of a feature set."""

    uses: tuple[str, ...] = ()
    scoped: bool = False
    rollback: bool = False
    initial: object = None


class Feature:
    """A set of behaviours that a host can enable or not."""

    def __init__(
        self, joint: FeatureDependencies, name: str, description: str, traits: FeatureOptions
    ) -> None:
        if not mcpl.is_set_name(name):
            raise Misconfigured(f"{name!r:.140} is no feature set: words joined by dots")
        if not description.strip():
            raise Misconfigured(f"feature set {name!r} needs a description: people decide by it")
        if strange := [each for each in traits.uses if each not in FeatureUse]:
            known = ", ".join(FeatureUse)
            raise Misconfigured(f"feature set {name!r} uses {strange[0]!r:.60}, not one of {known}")
        self.name = name
        self.description = description
        self.is_scoped = traits.scoped
        self.has_rollback = traits.rollback
        self.uses = {FeatureUse(each) for each in traits.uses}
        self.tool_names: set[str] = set()
        self.before: list[Before] = []
        self.after: list[tuple[After, bool]] = []
        self.roll_back: Rollback | None = None
        self.keeper = FeatureStateTracker({} if traits.initial is None else traits.initial)
        self._joint = joint

    def declared(self) -> dict[str, Any]:
        """Return the wire form. Raises Misconfigured for a set without uses. (B.2)"""
        if not self.uses:
            raise Misconfigured(f"feature set {self.name!r} uses nothing: say `uses=...`")
        told: dict[str, Any] = {"description": self.description, "uses": sorted(self.uses)}
        if self.is_scoped:
            told["scoped"] = True
        if self.has_rollback:
            told["rollback"] = True
        return told

    # Requests of a host.

    def before_inference[F: Before](self, hook: F) -> F:
        """Add a hook that injects context; the first feature set with injections answers."""
        self.uses.add(FeatureUse.BEFORE)
        self.before.append(hook)
        return hook

    def after_inference(self, hook: After | None = None, *, blocking: bool = False) -> Any:
        """Add a hook that reads the reply; a blocking one may return another reply."""
        self.uses.add(FeatureUse.AFTER)

        def join(function: After) -> After:
            self.after.append((function, blocking))
            return function

        return join if hook is None else join(hook)

    def tool(self, security: Security | None = None, **options: Any) -> Callable[[Any], Any]:
        """Add a tool to this set; `state` and `scope` are those of its call."""
        self.uses.add(FeatureUse.TOOLS)
        made = self._joint.tools(security, **options)

        def join(function: Any) -> Any:
            self.tool_names.add(options.get("name") or function.__name__)
            return made(function)

        return join

    def on_rollback[F: Rollback](self, function: F) -> F:
        """Set the rollback handler. It returns False or a reason if it fails. (§8.6)"""
        self.has_rollback = True
        self.roll_back = function
        return function

    @property
    def state(self) -> FeatureState:
        """The state that the host sent with the current call."""
        called = self._called
        if called.state is None:
            raise Misconfigured(f"feature set {self.name!r} keeps no state: say `rollback=True`")
        return called.state

    @property
    def scope(self) -> ScopeClaim | None:
        """The scope of the current call; None if the host sent none. (§7.7)"""
        return self._called.scope

    @property
    def _called(self) -> FeatureCallContext:
        called = CALL.get()
        if called is None or called.feature != self.name:
            raise Misconfigured(f"no tool of feature set {self.name!r} is running here")
        return called

    # Decisions of a host.

    @property
    def is_enabled(self) -> bool:
        """Whether any host has it enabled now."""
        return any(each.decided.allows(self.name) for each in self._joint.hosts.all)

    async def enabled(self) -> None:
        """Wait until some host enables it and can be reached."""
        hosts = self._joint.hosts
        async with hosts.news:
            await hosts.news.wait_for(
                lambda: any(hosts.taking(self.name, use) for use in self.uses)
            )

    @property
    def bounds(self) -> ScopeBounds:
        """The scope bounds of the newest host, which enforces them."""
        hosts = self._joint.hosts.all
        told = (each.decided.scopes.get(self.name) for each in reversed(hosts))
        return next((each for each in told if each is not None), ScopeBounds())

    # Requests to a host.

    async def push(
        self,
        event: str,
        content: Saying,
        *,
        origin: Mapping[str, Any] | None = None,
        at: datetime | None = None,
    ) -> HostPushResult:
        """Push an event to every host that takes it. A repeated `event` id is the same event."""
        self._require(FeatureUse.PUSH)
        told: dict[str, Any] = {
            "featureSet": self.name,
            "eventId": event,
            "timestamp": format_event_time(at or datetime.now(UTC)),
            "payload": {"content": blocks_of(content)},
            **({} if origin is None else {"origin": dict(origin)}),
        }
        try:
            model.push_in("", jsonrpc.to_raw(told))
        except MalformedMessage as problem:
            raise Misconfigured(f"this cannot be pushed: {problem}") from None
        hosts = self._joint.hosts.taking(self.name, FeatureUse.PUSH)
        if not hosts:
            return HostPushResult(False, reason=f"no host takes events of {self.name!r}")
        outcomes = await asyncio.gather(*(self._push(host, told) for host in hosts))
        return next((each for each in outcomes if each.accepted), outcomes[0])

    async def _push(self, host: McplHost, params: Mapping[str, Any]) -> HostPushResult:
        for _ in range(MOST_TRIES):
            if not host.decided.allows(self.name):
                break
            try:
                return pushed_in(await host.ask(model.PUSH, params, PUSH_SECONDS))
            except HostRequestFailure:
                continue
            except HostRefusal as refused:
                return HostPushResult(False, reason=str(refused))
        return HostPushResult(False, reason="the host did not answer")

    async def infer(
        self,
        messages: Messages,
        *,
        conversation: str = "",
        max_tokens: int | None = None,
        temperature: float | None = None,
        on_piece: OnPiece | None = None,
        within: timedelta = LONGEST,
    ) -> Reply:
        """Ask the host's model. Raises HostUnavailable, HostRefusal, HostRequestFailure."""
        self._require(FeatureUse.INFERENCE)
        refuse_in_hook()
        asked = HostInferenceRequest(self.name, messages, conversation, max_tokens, temperature)
        asked.params(stream=False)
        hosts = self._joint.hosts.taking(self.name, FeatureUse.INFERENCE)
        if not hosts:
            raise HostUnavailable(f"no host lets {self.name!r} ask a model")
        return await self._joint.inferring.ask(hosts[0], asked, on_piece, within)

    async def elevate(
        self, scope: ScopeClaim, *, within: timedelta = A_LONG_WAIT
    ) -> HostElevationResult:
        """Ask for a wider scope; within a call, for the caller of that call. (§7.4)"""
        if not self.is_scoped:
            raise Misconfigured(f"feature set {self.name!r} has no scopes: say `scoped=True`")
        if not scope.label:
            raise Misconfigured("a scope has a label, for people to read")
        told = {"featureSet": self.name, "scope": mcpl.scope_on_wire(scope)}
        way = self._way()
        if way is None:
            return HostElevationResult(False, reason=f"no host decides about {self.name!r}")
        try:
            said = await way.ask(mcpl.ELEVATE, told, new_id(), within.total_seconds())
        except HostRequestFailure:
            return HostElevationResult(False, reason="the host did not answer")
        except HostRefusal as refused:
            return HostElevationResult(False, reason=str(refused))
        return elevated_in(said)

    def _way(self) -> HostConnection | None:
        called = CALL.get()
        if called is not None and called.way is not None and called.feature == self.name:
            return called.way
        hosts = self._joint.hosts.all
        here = [each for each in hosts if each.decided.allows(self.name) and each.way is not None]
        return here[-1].way if here else None

    def _require(self, use: FeatureUse) -> None:
        if use not in self.uses:
            raise Misconfigured(f"feature set {self.name!r} does not use {use}: say `uses=...`")


def format_event_time(at: datetime) -> str:
    """Return the wire form of a time; a time without a zone is UTC."""
    aware = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return aware.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


log = logging.getLogger(__name__)

type Start = Callable[[Coroutine[Any, Any, None]], None]


class FeatureHookRunner:
    """Runs the hooks of all feature sets of a server."""

    def __init__(self, name: str, sets: Mapping[str, Feature], start: Start) -> None:
        self._name = name
        self._sets = sets
        self._start = start

    @property
    def is_waited_for(self) -> bool:
        """Whether any hook may change the reply. (§10.5)"""
        return any(blocking for each in self._sets.values() for _, blocking in each.after)

    def afterwards(self, function: Callable[..., Awaitable[object]], *args: object) -> None:
        """Run a function after the current hook has ended, when it may ask a model."""
        hook = HOOK.get()

        async def run() -> None:
            if hook is not None:
                await hook.over.wait()
            HOOK.set(None)
            await function(*args)

        self._start(run())

    async def before(self, host: McplHost, params: Mapping[str, Any]) -> dict[str, Any]:
        turn = turn_in(params)
        enabled = self._enabled(host, [each for each in self._sets.values() if each.before])
        async with host.hooked():
            for each in enabled:
                for hook in each.before:
                    found = self._injected(each, await self._heard(each.name, hook, turn))
                    if found:
                        return {"featureSet": each.name, "contextInjections": found}
        return {"featureSet": enabled[0].name, "contextInjections": []}

    async def after(
        self, host: McplHost, params: Mapping[str, Any], *, waited_for: bool
    ) -> dict[str, Any]:
        turn = turn_in(params)
        enabled = self._enabled(host, [each for each in self._sets.values() if each.after])
        said: dict[str, Any] | None = None
        async with host.hooked():
            for each in enabled:
                for hook, blocking in each.after:
                    if not waited_for:
                        await self._heard(each.name, hook, turn)
                    elif not blocking:
                        if turn.is_requested:
                            # Who only observes may ask a model about what it observed. It would ask
                            # about the answer to that too, without end.
                            continue
                        self.afterwards(self._heard, each.name, hook, turn)
                    elif found := await self._looked(each.name, hook, turn):
                        # The next one looks at what this one left.
                        said, turn = found, replace(turn, answer=found["modifiedResponse"])
        return said or {"featureSet": enabled[0].name}

    def _enabled(self, host: McplHost, sets: list[Feature]) -> list[Feature]:
        return [each for each in sets if host.decided.allows(each.name)] or _refuse(sets)

    def _injected(self, feature: Feature, value: object) -> list[dict[str, Any]]:
        try:
            return encode_injections(value, self._name)
        except Misconfigured:
            log.exception("The result of a hook of %r cannot be sent", feature.name)
            return []

    async def _looked(
        self, feature: str, hook: Callable[[Turn], Awaitable[object]], turn: Turn
    ) -> dict[str, Any] | None:
        """The changed reply of a hook, or None. Raises MCPError if the hook failed."""
        problems: list[Exception] = []
        found = await self._heard(feature, hook, turn, problems)
        if problems or not (found is None or isinstance(found, str | Rewrite)):
            raise MCPError(INTERNAL_ERROR.code, "the hook failed", {"featureSet": feature})
        return None if found is None else _rewritten(feature, found)

    async def _heard(
        self,
        feature: str,
        hook: Callable[[Turn], Awaitable[object]],
        turn: Turn,
        problems: list[Exception] | None = None,
    ) -> object:
        hooked = FeatureHookRun(asyncio.Event())
        before = HOOK.set(hooked)
        try:
            return await hook(turn)
        except Exception as problem:
            log.exception("a hook of %r failed", feature)
            if problems is not None:
                problems.append(problem)
            return None
        finally:
            hooked.over.set()
            HOOK.reset(before)


def _refuse(sets: list[Feature]) -> NoReturn:
    named = sets[0].name if sets else ""
    data = {"featureSet": named, "canEnable": bool(sets)}
    raise MCPError(FEATURE_NOT_ENABLED.code, "Feature set not enabled", data)


def _rewritten(feature: str, said: str | Rewrite) -> dict[str, Any]:
    made = Rewrite(said) if isinstance(said, str) else said
    told: dict[str, Any] = {"featureSet": feature, "modifiedResponse": made.text}
    return {**told, "metadata": dict(made.metadata)} if made.metadata else told
