"""One feature set of a live server, as its author uses it: hooks, tools, pushes, models. (MCPL §6)

Rule 1: what a set uses is what its author says or joins to it; a set that says nothing is refused.
Rule 2: each message of a server's own bears its set, and none is sent that its host has not
        enabled just now. (§6.5, §6.7)
Rule 3: an event keeps its id however often it is sent. (§9.4)
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol

from comity.sdk.live_hosts import Absent, Host, Hosts, Lost, Refused, Way, new_id
from comity.sdk.live_inference import (
    LONGEST,
    Inferring,
    Messages,
    OnPiece,
    Question,
    refuse_in_hook,
)
from comity.sdk.live_state import Keeper, State
from comity.sdk.live_words import (
    Elevated,
    Injection,
    Pushed,
    Reply,
    Rewrite,
    Saying,
    Turn,
    blocks_of,
    elevated_in,
    pushed_in,
)
from comity.sdk.mgp_server_labels import Security
from comity.wire import features, jsonrpc, pushes
from comity.wire.errors import MalformedMessage, Misconfigured
from comity.wire.features import Bounds, Scope, Use

PUSH_SECONDS: Final = 20.0
MOST_TRIES: Final = 3
A_LONG_WAIT: Final = timedelta(minutes=10)
"""What a person may take to answer."""

type Before = Callable[[Turn], Awaitable[str | Injection | list[Injection] | Saying | None]]
type After = Callable[[Turn], Awaitable[str | Rewrite | None]]
type Rollback = Callable[[str], Awaitable[bool | str | None]]


class Tools(Protocol):
    """Who makes tools of functions."""

    def __call__(self, security: Security | None, **options: Any) -> Callable[[Any], Any]: ...


@dataclass(slots=True)
class Called:
    """The call amid which a tool runs."""

    feature: str
    host: Host | None
    way: Way | None
    state: State | None
    scope: Scope | None


CALL: ContextVar[Called | None] = ContextVar("comity_live_call", default=None)


@dataclass(frozen=True, slots=True)
class Joint:
    """What the sets of one server have in common."""

    hosts: Hosts
    inferring: Inferring
    tools: Tools


@dataclass(frozen=True, slots=True)
class Traits:
    """What its author says of a set beside its name."""

    uses: tuple[str, ...] = ()
    scoped: bool = False
    rollback: bool = False
    initial: object = None


class Feature:
    """A set of behaviours that a host can enable or not."""

    def __init__(self, joint: Joint, name: str, description: str, traits: Traits) -> None:
        if not features.is_set_name(name):
            raise Misconfigured(f"{name!r:.140} is no feature set: words joined by dots")
        if not description.strip():
            raise Misconfigured(f"feature set {name!r} needs a description: people decide by it")
        if strange := [each for each in traits.uses if each not in Use]:
            known = ", ".join(Use)
            raise Misconfigured(f"feature set {name!r} uses {strange[0]!r:.60}, not one of {known}")
        self.name = name
        self.description = description
        self.is_scoped = traits.scoped
        self.has_rollback = traits.rollback
        self.uses = {Use(each) for each in traits.uses}
        self.tool_names: set[str] = set()
        self.before: list[Before] = []
        self.after: list[tuple[After, bool]] = []
        self.roll_back: Rollback | None = None
        self.keeper = Keeper({} if traits.initial is None else traits.initial)
        self._joint = joint

    def declared(self) -> dict[str, Any]:
        """As it stands on the wire. Raises Misconfigured for a set that is for nothing. (B.2)"""
        if not self.uses:
            raise Misconfigured(f"feature set {self.name!r} uses nothing: say `uses=...`")
        told: dict[str, Any] = {"description": self.description, "uses": sorted(self.uses)}
        if self.is_scoped:
            told["scoped"] = True
        if self.has_rollback:
            told["rollback"] = True
        return told

    # What a host asks of it.

    def before_inference[F: Before](self, hook: F) -> F:
        """Have a function add to what the model reads; the first set that has something answers."""
        self.uses.add(Use.BEFORE)
        self.before.append(hook)
        return hook

    def after_inference(self, hook: After | None = None, *, blocking: bool = False) -> Any:
        """Have a function hear what was said; one that blocks may return what to say instead."""
        self.uses.add(Use.AFTER)

        def join(function: After) -> After:
            self.after.append((function, blocking))
            return function

        return join if hook is None else join(hook)

    def tool(self, security: Security | None = None, **options: Any) -> Callable[[Any], Any]:
        """A tool of this set; `state` and `scope` are those of its call."""
        self.uses.add(Use.TOOLS)
        made = self._joint.tools(security, **options)

        def join(function: Any) -> Any:
            self.tool_names.add(options.get("name") or function.__name__)
            return made(function)

        return join

    def on_rollback[F: Rollback](self, function: F) -> F:
        """Have the server's own state put back; a text is why it cannot be. (§8.6)"""
        self.has_rollback = True
        self.roll_back = function
        return function

    @property
    def state(self) -> State:
        """What the host brought with the call amid which this is asked."""
        called = self._called
        if called.state is None:
            raise Misconfigured(f"feature set {self.name!r} keeps no state: say `rollback=True`")
        return called.state

    @property
    def scope(self) -> Scope | None:
        """What the call may reach, where its host said so. (§7.7)"""
        return self._called.scope

    @property
    def _called(self) -> Called:
        called = CALL.get()
        if called is None or called.feature != self.name:
            raise Misconfigured(f"no tool of feature set {self.name!r} is running here")
        return called

    # What a host decided.

    @property
    def is_enabled(self) -> bool:
        """Whether any host has it enabled just now."""
        return any(each.decided.allows(self.name) for each in self._joint.hosts.all)

    async def enabled(self) -> None:
        """Wait until some host enables it and can be reached."""
        hosts = self._joint.hosts
        async with hosts.news:
            await hosts.news.wait_for(
                lambda: any(hosts.taking(self.name, use) for use in self.uses)
            )

    @property
    def bounds(self) -> Bounds:
        """What the newest host said that it may reach. The host enforces it; this only spares."""
        hosts = self._joint.hosts.all
        told = (each.decided.scopes.get(self.name) for each in reversed(hosts))
        return next((each for each in told if each is not None), Bounds())

    # What it asks of a host.

    async def push(
        self,
        event: str,
        content: Saying,
        *,
        origin: Mapping[str, Any] | None = None,
        at: datetime | None = None,
    ) -> Pushed:
        """Tell every host that wants it of an event; it is one event however often it is sent."""
        self._require(Use.PUSH)
        told: dict[str, Any] = {
            "featureSet": self.name,
            "eventId": event,
            "timestamp": stamp(at or datetime.now(UTC)),
            "payload": {"content": blocks_of(content)},
            **({} if origin is None else {"origin": dict(origin)}),
        }
        try:
            pushes.push_in("", jsonrpc.to_raw(told))
        except MalformedMessage as problem:
            raise Misconfigured(f"this cannot be pushed: {problem}") from None
        hosts = self._joint.hosts.taking(self.name, Use.PUSH)
        if not hosts:
            return Pushed(False, reason=f"no host takes events of {self.name!r}")
        outcomes = await asyncio.gather(*(self._push(host, told) for host in hosts))
        return next((each for each in outcomes if each.accepted), outcomes[0])

    async def _push(self, host: Host, told: Mapping[str, Any]) -> Pushed:
        for _ in range(MOST_TRIES):
            if not host.decided.allows(self.name):
                break
            try:
                return pushed_in(await host.ask(pushes.PUSH, told, PUSH_SECONDS))
            except Lost:
                continue
            except Refused as refused:
                return Pushed(False, reason=str(refused))
        return Pushed(False, reason="the host did not answer")

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
        """What the host's model says. Raises Absent, Refused, Lost."""
        self._require(Use.INFERENCE)
        refuse_in_hook()
        asked = Question(self.name, messages, conversation, max_tokens, temperature)
        asked.params(stream=False)
        hosts = self._joint.hosts.taking(self.name, Use.INFERENCE)
        if not hosts:
            raise Absent(f"no host lets {self.name!r} ask a model")
        return await self._joint.inferring.ask(hosts[0], asked, on_piece, within)

    async def elevate(self, scope: Scope, *, within: timedelta = A_LONG_WAIT) -> Elevated:
        """Ask to reach beyond what is allowed; within a call, in the name of who called. (§7.4)"""
        if not self.is_scoped:
            raise Misconfigured(f"feature set {self.name!r} has no scopes: say `scoped=True`")
        if not scope.label:
            raise Misconfigured("a scope has a label, for people to read")
        told = {"featureSet": self.name, "scope": features.scope_on_wire(scope)}
        way = self._way()
        if way is None:
            return Elevated(False, reason=f"no host decides about {self.name!r}")
        try:
            said = await way.ask(features.ELEVATE, told, new_id(), within.total_seconds())
        except Lost:
            return Elevated(False, reason="the host did not answer")
        except Refused as refused:
            return Elevated(False, reason=str(refused))
        return elevated_in(said)

    def _way(self) -> Way | None:
        called = CALL.get()
        if called is not None and called.way is not None and called.feature == self.name:
            return called.way
        hosts = self._joint.hosts.all
        here = [each for each in hosts if each.decided.allows(self.name) and each.way is not None]
        return here[-1].way if here else None

    def _require(self, use: Use) -> None:
        if use not in self.uses:
            raise Misconfigured(f"feature set {self.name!r} does not use {use}: say `uses=...`")


def stamp(at: datetime) -> str:
    """A moment as it stands on the wire; one without a zone is taken for UTC."""
    aware = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return aware.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
