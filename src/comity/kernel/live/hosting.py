"""The host of live servers: what each declared, what it may do, and the way to and from it. (MCPL)

Rule 1: what a server declares authorises nothing. Nothing is enabled before the first
        `featureSets/update`, which is always sent. (D-58)
Rule 2: each message of a server's is checked here for declared, enabled and `uses`, before whoever
        answers it sees it. (§6.6, D-61)
Rule 3: every request of a server's is answered, with an error if need be. (D-70)
Rule 4: whatever one server does, it is bounded, written down, and no other notices. (§13.2)
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Final

from msgspec import Raw

from comity.kernel.audit_recorder import Bound
from comity.kernel.call import Call
from comity.kernel.chores import Chores
from comity.kernel.live import bearing
from comity.kernel.live.bearing import Bearer
from comity.kernel.live.enabling import Enabling
from comity.kernel.live.hosted import Hosted, Told
from comity.kernel.live.load import Load
from comity.kernel.live.noting import OK, Deed, Noting
from comity.kernel.live.reversing import Reverse
from comity.kernel.pulse import LiveLink
from comity.kernel.question import Errand, Question
from comity.ports import Headers
from comity.rules.live_policy import NOTHING, LivePolicy
from comity.wire import features, jsonrpc, mcp, reverse
from comity.wire.audit import Result, Type
from comity.wire.errors import (
    EXHAUSTED,
    FEATURE_NOT_ENABLED,
    FEATURE_UNKNOWN,
    INTERNAL_ERROR,
    METHOD_NOT_FOUND,
    Fault,
    MalformedMessage,
    Unavailable,
)
from comity.wire.features import Declared, Use
from comity.wire.jsonrpc import UNSET, Frame, Id
from comity.wire.parties import GATEWAY

__all__ = ["Answer", "Bearer", "Hear", "Hosted", "Hosting", "Parts", "Told"]

log = logging.getLogger(__name__)

MOST_NAMED: Final = 100
MOST_CHANGES: Final = 50
"""How often in a while a server may say that it can do something else than before."""

_NOTHING: Final = Raw(b"{}")
_ABOUT_SETS: Final = (FEATURE_NOT_ENABLED, FEATURE_UNKNOWN)
_BUSY: Final = "too many requests of this server are under way already"
_TURNED_DOWN: Final = ("accepted", "approved")
"""The members of a result by which a host says no without an error. (D-60)"""

type Answer = Callable[[Told], Awaitable[Mapping[str, object]]]
"""Answers one request. What it raises is told the server: Unavailable, MalformedMessage."""

type Hear = Callable[[Told], Awaitable[None]]
type Respond = Callable[[Frame], None]


@dataclass(frozen=True, slots=True)
class _Method:
    answer: Answer
    use: Use | None


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

    def __init__(
        self,
        policy_of: Callable[[str], LivePolicy] = lambda _: NOTHING,
        enabling: Enabling | None = None,
    ) -> None:
        self.parts = Parts()
        # Where everything that is done here is written down.
        self.noting = Noting()
        # Of a server that another node runs, that node is the host.
        self.is_elsewhere: Callable[[str], bool] = lambda _: False
        self._enabling = enabling or Enabling(policy_of)
        self._hosted: dict[str, Hosted] = {}
        self._load = Load()
        self._changes = Bound(self._enabling.clock, MOST_CHANGES)
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
        if found is None or not found.link.is_open:
            return None
        self._look_at(found)
        return found

    def all(self) -> list[Hosted]:
        """The live servers that are there, in their configured order."""
        here = [each for name in list(self._hosted) if (each := self.get(name)) is not None]
        return sorted(here, key=lambda each: (each.policy.order, each.server))

    def having(self, use: Use) -> list[Hosted]:
        """Those of them that may do this."""
        return [each for each in self.all() if each.using(use)]

    def refresh(self, server: str) -> None:
        """Its operator has decided otherwise: it counts from now, and the server is told."""
        found = self._hosted.get(server)
        if found is not None and found.link.is_open:
            self._announce(found)

    def look(self) -> None:
        """Have decided anew what is due, though no server says anything just now."""
        for server in list(self._hosted):
            self.get(server)

    def dismiss(self, server: str) -> None:
        """There is no such server any more."""
        gone = self._hosted.pop(server, None)
        self._load.forget(server)
        self._changes.forget(server)
        self.noting.forget(server)
        if gone is not None and gone.reverse is not None:
            gone.reverse.close()

    def stop(self) -> None:
        self._chores.cancel()
        self._load.stop()
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
            link.tell(jsonrpc.notification(features.UPDATE, _update(known)))
        elif declared is not None and not self.is_elsewhere(link.server):
            self.welcome(link, declared)

    def welcome(self, link: LiveLink, declared: Declared) -> Hosted:
        """A live server is there, on the gateway's own link."""
        before = self._hosted.get(link.server)
        if before is not None:
            self._load.forget(link.server)
            if before.reverse is not None:
                before.reverse.close()
        hosted = Hosted(link.server, link, declared, NOTHING, frozenset(), noting=self.noting)
        self._hosted[link.server] = hosted
        self._announce(hosted)
        if hosted.is_modern:
            hosted.reverse = Reverse(link, self._reversed)
        return hosted

    def asked(self, link: LiveLink, question: Question, frame: Frame, amid: Errand | None) -> bool:
        method = question.method
        if method not in self.parts.methods and method not in features.ASKED_OF_HOSTS:
            return False
        task = self._take(link, frame, question.answered, amid)
        if task is not None and not task.done():
            # It may take its question back, or be gone.
            question.settled = lambda: asyncio.current_task() is task or task.cancel()
        return True

    def told(self, link: LiveLink, frame: Frame) -> bool:
        method, by = str(frame.method), self.get(link.server)
        if method in (reverse.ASKED, reverse.TOLD):
            if by is not None and by.link is link and by.reverse is not None:
                by.reverse.heard(frame)
            return True
        hear = self.parts.hearers.get(method)
        if hear is not None and by is not None:
            told = Told(by, method, _params(frame), link=link)
            if not self._load.hear(link.server, partial(self._heard, hear, told)):
                self._refuse(by.server, method, "", EXHAUSTED)
        return hear is not None or method in features.TOLD_TO_HOSTS

    def carries(self, link: LiveLink, call: Call, frame: Frame, headers: Headers) -> bool:
        by, is_modern = self.get(link.server), link.hello is None
        if by is None:
            return False
        if is_modern and not call.is_for_all_servers and bearing.speaks_for_itself(frame):
            # Its client is a host itself, and agrees with the server on its own.
            return False
        bearers = [each for each in self.parts.bearers if each.carries(by, call, frame)]
        frame = bearing.introduced(frame) if is_modern else frame
        if bearers:
            outgoing = bearing.carry(bearers, by, link, call, (frame, headers))
            self._chores.start(outgoing, at_once=True)
        elif is_modern:
            link.send(call, frame, headers)
        return is_modern or bool(bearers)

    def answered(self, link: LiveLink, errand: Errand, frame: Frame, status: int) -> bool:
        # What an answer brings is kept also where the gateway's own link has just gone.
        by, bearers = self._hosted.get(link.server), self.parts.bearers
        if by is None or not bearers or frame.result is UNSET:
            return False
        if not isinstance(errand, Call) or errand.method != mcp.CALL_TOOL:
            return False
        self._chores.start(bearing.take(bearers, by, errand, frame, status), at_once=True)
        return True

    # What follows.

    def _look_at(self, hosted: Hosted) -> None:
        if self._enabling.is_due(hosted) and self._enabling.decide(hosted):
            self._tell(hosted)

    def _announce(self, hosted: Hosted) -> None:
        self._enabling.decide(hosted)
        self._tell(hosted)

    def _tell(self, hosted: Hosted) -> None:
        """Let a server, and whoever goes by it, know what it may do."""
        self._chores.start(hosted.tell(features.UPDATE, _update(hosted)), at_once=True)
        self._note_told(hosted)
        for watcher in self.parts.watchers:
            try:
                watcher(hosted)
            except Exception:
                log.exception("who watches live servers failed at %r", hosted.server)

    async def _changed(self, told: Told) -> None:
        """A server can do more, or less; what is new is enabled as its operator said before."""
        by = told.by
        if self._changes.take(by.server) is None:
            raise Unavailable("it says so too often", EXHAUSTED)
        added, removed = features.changed_in(told.params)
        sets = {name: each for name, each in by.declared.sets.items() if name not in removed}
        sets = dict(list({**sets, **added}.items())[: features.MOST_SETS])
        by.declared = replace(by.declared, sets=sets)
        details = {"added": _named(added), "removed": _named(removed)}
        self.noting.note(Type.FEATURES_CHANGED, Deed(by.server, features.CHANGED, details=details))
        self._announce(by)

    def _reversed(self, link: LiveLink, frame: Frame, respond: Respond) -> None:
        """What a modern server asks or tells on the way back."""
        if frame.id is UNSET:
            self.told(link, frame)
        else:
            self._take(link, frame, respond, None)

    def _take(
        self, link: LiveLink, frame: Frame, respond: Respond, amid: Errand | None
    ) -> asyncio.Task[None] | None:
        """Have a request answered; at once where it is one too many."""
        work = partial(self._answer, link, frame, respond, amid)
        task = self._load.answer(link.server, work)
        if task is None:
            self._refuse(link.server, str(frame.method), "", EXHAUSTED)
            respond(jsonrpc.failure(_id(frame), EXHAUSTED, _BUSY))
        return task

    async def _answer(
        self, link: LiveLink, frame: Frame, respond: Respond, amid: Errand | None
    ) -> None:
        method, feature = str(frame.method), _named_in(frame)
        try:
            found = await self._result(link, frame, amid)
            answer = jsonrpc.result(_id(frame), found)
        except (MalformedMessage, Unavailable) as error:
            self._refuse(link.server, method, feature, error.fault)
            respond(self._failure(link.server, feature, error, _id(frame)))
        except Exception:
            log.exception("answering %s of server %r ended in a bug", method, link.server)
            self._refuse(link.server, method, feature, INTERNAL_ERROR)
            respond(jsonrpc.failure(_id(frame), INTERNAL_ERROR, "the host failed"))
        else:
            self._note_answered(link.server, method, feature, found)
            respond(answer)

    async def _result(
        self, link: LiveLink, frame: Frame, amid: Errand | None
    ) -> Mapping[str, object]:
        method, by = self.parts.methods.get(str(frame.method)), self.get(link.server)
        if method is None:
            raise MalformedMessage(f"nobody here answers {frame.method:.80}", METHOD_NOT_FOUND)
        if by is None:
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
            self._refuse(told.by.server, told.method, "", error.fault)

    def _failure(
        self, server: str, feature: str, error: MalformedMessage | Unavailable, asker: Id
    ) -> Frame:
        """Why not, in MCPL's own words where it is about a feature set. (§6.6)"""
        data: dict[str, object] = {"error_type": error.fault.error_type}
        if isinstance(error, Unavailable) and error.retry_after is not None:
            data["retry_after_ms"] = error.retry_after // timedelta(milliseconds=1)
        if error.fault in _ABOUT_SETS:
            data = {"featureSet": feature}
        if error.fault is FEATURE_NOT_ENABLED:
            by = self._hosted.get(server)
            forbidden = by is not None and by.standing(feature).by == "guardrail"
            data = {"featureSet": feature, "canEnable": not forbidden}
        return jsonrpc.failure(asker, _numbered(error.fault), str(error), data)

    # What is written down.

    def _refuse(self, server: str, method: str, feature: str, fault: Fault) -> None:
        result = Result.FAILURE if fault is INTERNAL_ERROR else Result.BLOCKED
        deed = Deed(server, method, feature, outcome=fault.error_type)
        self.noting.note(Type.FEATURE_REFUSED, deed, result)

    def _note_answered(
        self, server: str, method: str, feature: str, found: Mapping[str, object]
    ) -> None:
        said_no = any(found.get(member) is False for member in _TURNED_DOWN)
        outcome = str(found.get("reason") or "declined") if said_no else OK
        inference = str(found.get("inferenceId", ""))
        result = Result.BLOCKED if said_no else Result.SUCCESS
        deed = Deed(server, method, feature, inference, outcome)
        self.noting.note(Type.FEATURE_USED, deed, result)

    def _note_told(self, hosted: Hosted) -> None:
        enabled = sorted(hosted.enabled)
        disabled = sorted(hosted.declared.sets.keys() - hosted.enabled)
        details = {"enabled": enabled[:MOST_NAMED], "disabled": disabled[:MOST_NAMED]}
        deed = Deed(hosted.server, features.UPDATE, by=GATEWAY, details=details)
        self.noting.note(Type.FEATURES_TOLD, deed)


def _update(hosted: Hosted) -> dict[str, object]:
    enabled = sorted(hosted.enabled)
    disabled = sorted(hosted.declared.sets.keys() - hosted.enabled)
    scopes = {name: each for name, each in hosted.policy.scopes.items() if name in hosted.enabled}
    return features.update(enabled, disabled, scopes)


def _named(names: Mapping[str, object] | tuple[str, ...]) -> list[str]:
    return [name[: features.LONGEST_NAME] for name in list(names)[:MOST_NAMED]]


def _named_in(frame: Frame) -> str:
    """The feature set that a message names, as far as anybody repeats it."""
    try:
        named = jsonrpc.text(jsonrpc.members(_params(frame)).get("featureSet")) or ""
    except MalformedMessage:
        return ""
    return named[: features.LONGEST_NAME]


def _numbered(fault: Fault) -> Fault:
    return replace(fault, code=fault.mcpl) if isinstance(fault.mcpl, int) else fault


def _params(frame: Frame) -> Raw:
    return _NOTHING if frame.params is UNSET else frame.params


def _id(frame: Frame) -> Id:
    assert frame.id is not UNSET, "only requests are answered"
    return frame.id  # type: ignore[return-value]  # nobody sends a request with no id
