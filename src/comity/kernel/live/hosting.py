"""The host of live servers: what each declared, what it may do, and the way to and from it. (MCPL)

Rule 1: what a server declares authorises nothing. Nothing is enabled before the first
        `featureSets/update`, which is always sent. (D-58)
Rule 2: each message of a server's is checked here for declared, enabled and `uses`, before whoever
        answers it sees it. (§6.6, D-61)
Rule 3: every request of a server's is answered, with an error if need be. (D-70)
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final, Protocol

from msgspec import Raw

from comity.kernel.call import Call
from comity.kernel.chores import Chores
from comity.kernel.listing import envelope
from comity.kernel.live.noting import Noting
from comity.kernel.live.reversing import Reverse
from comity.kernel.pulse import LiveLink
from comity.kernel.question import Errand, Question
from comity.ports import Headers
from comity.rules.live_policy import NOTHING, LivePolicy, enabled_of, required
from comity.wire import features, jsonrpc, mcp
from comity.wire.errors import (
    FEATURE_NOT_ENABLED,
    FEATURE_UNKNOWN,
    INTERNAL_ERROR,
    UPSTREAM_FAILED,
    UPSTREAM_SLOW,
    Fault,
    MalformedMessage,
    Unavailable,
)
from comity.wire.features import Declared, FeatureSet, Use
from comity.wire.jsonrpc import UNSET, Frame, Id

log = logging.getLogger(__name__)

TELL_SECONDS: Final = 10.0
_NOTHING: Final = Raw(b"{}")
_ABOUT_SETS: Final = (FEATURE_NOT_ENABLED, FEATURE_UNKNOWN)


@dataclass(slots=True)
class Hosted:
    """One live server as it is just now."""

    server: str
    link: LiveLink
    declared: Declared
    policy: LivePolicy
    enabled: frozenset[str]
    reverse: Reverse | None = None

    @property
    def is_modern(self) -> bool:
        """Whether it is of the era in which servers ask nothing by themselves."""
        return self.link.hello is None

    def require(self, feature: str, use: Use) -> FeatureSet:
        """The enabled set by which it may do this. Raises MalformedMessage."""
        return required(self.declared.sets, self.enabled, feature, use)

    def using(self, use: Use) -> list[FeatureSet]:
        """The enabled sets that are for this."""
        sets = self.declared.sets
        return [each for name, each in sets.items() if name in self.enabled and use in each.uses]

    async def ask(self, method: str, params: Mapping[str, object], within: timedelta) -> Raw:
        """What the server answers. Raises Unavailable, or MalformedMessage with its own code."""
        try:
            async with asyncio.timeout(within.total_seconds()):
                answer = await self._request(method, params)
        except TimeoutError:
            because = f"server {self.server!r} did not answer {method}"
            raise Unavailable(because, UPSTREAM_SLOW) from None
        error = jsonrpc.error_of(answer)
        if error is not None:
            fault = replace(UPSTREAM_FAILED, code=error.code)
            raise MalformedMessage(f"server {self.server!r}: {error.message[:500]}", fault)
        return _NOTHING if answer.result is UNSET else answer.result

    async def tell(self, method: str, params: Mapping[str, object]) -> None:
        """Tell the server something; whether it hears it is its own affair. (D-59)"""
        if not self.is_modern:
            self.link.tell(jsonrpc.notification(method, params))
            return
        # Stock peers of that era drop what they did not ask for.
        try:
            async with asyncio.timeout(TELL_SECONDS):
                await self._request(method, params)
        except (Unavailable, TimeoutError) as error:
            log.info("server %r did not hear %s: %s", self.server, method, error)

    async def _request(self, method: str, params: Mapping[str, object]) -> Frame:
        if not self.is_modern:
            return await self.link.request(method, params)
        headers = ((mcp.METHOD_HEADER, method.encode()),)
        return await self.link.request(method, {**params, "_meta": envelope()}, headers)


@dataclass(frozen=True, slots=True)
class Told:
    """What a server asks or tells its host; `feature` is the set by which it may."""

    by: Hosted
    method: str
    params: Raw
    id: Id | None = None
    feature: FeatureSet | None = None
    # The call amid which it says so, and the link on which.
    amid: Errand | None = None
    link: LiveLink | None = None

    @property
    def members(self) -> dict[str, Raw]:
        return jsonrpc.members(self.params)


type Answer = Callable[[Told], Awaitable[Mapping[str, object]]]
"""Answers one request. What it raises is told the server: Unavailable, MalformedMessage."""

type Hear = Callable[[Told], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _Method:
    answer: Answer
    use: Use | None


class Bearer(Protocol):
    """Who adds to calls of tools what belongs to them, and takes it from their answers."""

    def carries(self, by: Hosted, call: Call, frame: Frame) -> bool:
        """Whether there is anything to add to this call; `bring` then does it."""
        ...

    async def bring(self, by: Hosted, call: Call, frame: Frame) -> Frame:
        """The call with it. Raises Unavailable, MalformedMessage where it may not go."""
        ...

    async def take(self, by: Hosted, call: Call, frame: Frame) -> Frame:
        """The answer without it, once it is kept."""
        ...


@dataclass(slots=True)
class Parts:
    """Who answers what, joined by whoever assembles the gateway."""

    methods: dict[str, _Method] = field(default_factory=dict[str, _Method])
    hearers: dict[str, Hear] = field(default_factory=dict[str, Hear])
    bearers: list[Bearer] = field(default_factory=list[Bearer])
    # Who hears that a server is there, or may do something else than before.
    watchers: list[Callable[[Hosted], None]] = field(default_factory=list[Callable[[Hosted], None]])


class Hosting:
    """All live servers of this node."""

    def __init__(self, policy_of: Callable[[str], LivePolicy] = lambda _: NOTHING) -> None:
        self.parts = Parts()
        # Where everything that is done here is written down.
        self.noting = Noting()
        self._policy_of = policy_of
        self._hosted: dict[str, Hosted] = {}
        self._chores = Chores("live servers")
        self.parts.hearers[features.CHANGED] = self._changed

    # Who is joined.

    def add(self, method: str, answer: Answer, use: Use | None = None) -> None:
        """Have a method answered. With a `use`, its `featureSet` must allow that. (§6.5)"""
        self.parts.methods[method] = _Method(answer, use)

    def hear(self, method: str, hear: Hear) -> None:
        self.parts.hearers[method] = hear

    # Who is there.

    def get(self, server: str) -> Hosted | None:
        found = self._hosted.get(server)
        return found if found is not None and found.link.is_open else None

    def having(self, use: Use) -> list[Hosted]:
        """The servers that may do this, in their configured order."""
        here = [each for each in self._hosted.values() if each.link.is_open and each.using(use)]
        return sorted(here, key=lambda each: (each.policy.order, each.server))

    def refresh(self, server: str) -> None:
        """Its operator has decided otherwise: it counts from now, and the server is told."""
        found = self.get(server)
        if found is not None:
            found.policy = self._policy_of(server)
            self._announce(found)

    def stop(self) -> None:
        self._chores.cancel()
        for each in self._hosted.values():
            if each.reverse is not None:
                each.reverse.close()
        self._hosted.clear()

    # What links tell (`kernel.pulse.Live`).

    def greeted(self, link: LiveLink, capabilities: Raw | None) -> None:
        """A link is open: of the gateway's own it is the server; others only carry its calls."""
        declared = features.declared_in(capabilities)
        known = self.get(link.server)
        if known is not None and known.link is not link:
            self._chores.start(_told_on(link, known), at_once=True)
        elif declared is not None:
            self.welcome(link, declared)

    def welcome(self, link: LiveLink, declared: Declared) -> Hosted:
        """A live server is there, on the gateway's own link."""
        policy = self._policy_of(link.server)
        before = self._hosted.get(link.server)
        if before is not None and before.reverse is not None:
            before.reverse.close()
        hosted = Hosted(link.server, link, declared, policy, frozenset())
        self._hosted[link.server] = hosted
        if hosted.is_modern:
            hosted.reverse = Reverse(link, self._reversed)
        self._announce(hosted)
        return hosted

    def asked(self, link: LiveLink, question: Question, frame: Frame, amid: Errand | None) -> bool:
        if question.method not in self.parts.methods:
            return False
        self._chores.start(self._answer(link, frame, question.answered, amid), at_once=True)
        return True

    def told(self, link: LiveLink, frame: Frame) -> bool:
        hear, by = self.parts.hearers.get(str(frame.method)), self.get(link.server)
        if hear is None:
            return False
        if by is not None:
            told = Told(by, str(frame.method), _params(frame), link=link)
            self._chores.start(self._heard(hear, told), at_once=True)
        return True

    def carries(self, link: LiveLink, call: Call, frame: Frame, headers: Headers) -> bool:
        by = self.get(link.server)
        bearers = [] if by is None else self._bearing(by, call, frame)
        if by is None or not bearers:
            return False
        self._chores.start(_carry(bearers, by, link, call, frame, headers), at_once=True)
        return True

    def answered(self, link: LiveLink, errand: Errand, frame: Frame, status: int) -> bool:
        by = self.get(link.server)
        if by is None or not isinstance(errand, Call) or frame.result is UNSET:
            return False
        bearers = self.parts.bearers if errand.method == mcp.CALL_TOOL else []
        if not bearers:
            return False
        self._chores.start(_take(bearers, by, errand, frame, status), at_once=True)
        return True

    # What follows.

    def _bearing(self, by: Hosted, call: Call, frame: Frame) -> list[Bearer]:
        return [each for each in self.parts.bearers if each.carries(by, call, frame)]

    def _announce(self, hosted: Hosted) -> None:
        hosted.enabled = enabled_of(hosted.policy, hosted.declared.sets)
        self._chores.start(hosted.tell(features.UPDATE, _update(hosted)), at_once=True)
        for watcher in self.parts.watchers:
            watcher(hosted)

    async def _changed(self, told: Told) -> None:
        """A server can do more, or less; what is new is enabled as its operator said before."""
        added, removed = features.changed_in(told.params)
        sets = {name: each for name, each in told.by.declared.sets.items() if name not in removed}
        sets = dict(list({**sets, **added}.items())[: features.MOST_SETS])
        told.by.declared = replace(told.by.declared, sets=sets)
        self._announce(told.by)

    def _reversed(self, link: LiveLink, frame: Frame, respond: Callable[[Frame], None]) -> None:
        """What a modern server asks or tells on the way back."""
        if frame.id is UNSET:
            self.told(link, frame)
        else:
            self._chores.start(self._answer(link, frame, respond, None), at_once=True)

    async def _answer(
        self,
        link: LiveLink,
        frame: Frame,
        respond: Callable[[Frame], None],
        amid: Errand | None,
    ) -> None:
        asker: Id = frame.id  # type: ignore[assignment]  # it is a request
        try:
            respond(jsonrpc.result(asker, await self._result(link, frame, amid)))
        except (MalformedMessage, Unavailable) as error:
            respond(_failure(asker, error, frame))
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("answering %s of server %r ended in a bug", frame.method, link.server)
            respond(jsonrpc.failure(asker, INTERNAL_ERROR, "the host failed"))

    async def _result(
        self, link: LiveLink, frame: Frame, amid: Errand | None
    ) -> Mapping[str, object]:
        method, by = self.parts.methods.get(str(frame.method)), self.get(link.server)
        if method is None or by is None:
            raise MalformedMessage("Feature set not enabled", FEATURE_NOT_ENABLED)
        params, feature = _params(frame), None
        if method.use is not None:
            feature = by.require(features.set_named_in(jsonrpc.members(params)), method.use)
        told = Told(by, str(frame.method), params, _id(frame), feature, amid, link)
        return await method.answer(told)

    async def _heard(self, hear: Hear, told: Told) -> None:
        try:
            await hear(told)
        except (MalformedMessage, Unavailable) as error:
            log.info("server %r: %s: %s", told.by.server, told.method, error)


async def _told_on(link: LiveLink, hosted: Hosted) -> None:
    """Let a server know on this link too what it may do."""
    link.tell(jsonrpc.notification(features.UPDATE, _update(hosted)))


async def _carry(
    bearers: list[Bearer], by: Hosted, link: LiveLink, call: Call, frame: Frame, headers: Headers
) -> None:
    try:
        for each in bearers:
            frame = await each.bring(by, call, frame)
        link.send(call, frame, headers)
    except (Unavailable, MalformedMessage) as error:
        call.failed(error)


async def _take(bearers: list[Bearer], by: Hosted, call: Call, frame: Frame, status: int) -> None:
    try:
        for each in bearers:
            frame = await each.take(by, call, frame)
    except (Unavailable, MalformedMessage) as error:
        call.failed(error)
        return
    call.answered(frame, status)


def _update(hosted: Hosted) -> dict[str, object]:
    enabled = sorted(hosted.enabled)
    disabled = sorted(hosted.declared.sets.keys() - hosted.enabled)
    scopes = {name: each for name, each in hosted.policy.scopes.items() if name in hosted.enabled}
    return features.update(enabled, disabled, scopes)


def _failure(asker: Id, error: MalformedMessage | Unavailable, frame: Frame) -> Frame:
    """Why not, in MCPL's own words where it is about a feature set. (§6.6)"""
    data: dict[str, object] | None = None
    if error.fault in _ABOUT_SETS:
        named = jsonrpc.text(jsonrpc.members(_params(frame)).get("featureSet")) or ""
        data = {"featureSet": named[: features.LONGEST_NAME]}
        if error.fault is FEATURE_NOT_ENABLED:
            data["canEnable"] = True
    return jsonrpc.failure(asker, _numbered(error.fault), str(error), data)


def _numbered(fault: Fault) -> Fault:
    return replace(fault, code=fault.mcpl) if isinstance(fault.mcpl, int) else fault


def _params(frame: Frame) -> Raw:
    return _NOTHING if frame.params is UNSET else frame.params


def _id(frame: Frame) -> Id | None:
    return None if frame.id is UNSET else frame.id
