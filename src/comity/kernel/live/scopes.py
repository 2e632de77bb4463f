"""How far calls of tools reach: judged before they leave, put before people, and told the server.

Rule 1: what a call would reach is what its arguments say, at the place that its operator named; no
        word of the server's or of the client's counts. (MCPL §7.7, D-62)
Rule 2: a blacklist counts whatever set a server says its tool is of; a whitelist only of its own.
        Of a server with bounds, a tool that is said to be of a set without any is asked about:
        which set it is of is the server's word.
Rule 3: a tool of a feature set that is not enabled is not called by anybody. (§6.6, D-65)
Rule 4: what a person allows is one scope of one feature set to whoever asked, for a while.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, cast

from comity.kernel.across import Across
from comity.kernel.approved import looked_at
from comity.kernel.call import Call
from comity.kernel.call_hold import GoOn, Hold
from comity.kernel.catalog import Offer
from comity.kernel.catalog_access import Standing
from comity.kernel.held import HeldCall, Holding
from comity.kernel.live.hosted import Hosted
from comity.kernel.live.hosting import Hosting
from comity.kernel.live.noting import Deed
from comity.rules import asks
from comity.rules.features_of_tools import WHOLE, feature_of_tool, named_in
from comity.rules.live_policy import LivePolicy
from comity.rules.paths import Ruling
from comity.rules.refusals import Refusal
from comity.rules.scopes import found_at, ruled, scope_of, strictest
from comity.wire import features, jsonrpc
from comity.wire.asks import Ask, Kind
from comity.wire.audit import Result, Type
from comity.wire.errors import (
    ACCESS_DENIED,
    APPROVAL_REQUIRED,
    INVALID_TOOL_ARGS,
    TOOL_DISABLED,
    MalformedMessage,
)
from comity.wire.features import Scope
from comity.wire.jsonrpc import UNSET, Frame

ANY_SET: Final = "*"
"""The bounds of a server's tools that are of no set with bounds of its own."""

MEMBER: Final = "scope"
_LONGEST_SHOWN: Final = 300
_NOT_INSTEAD: Final = Refusal(
    APPROVAL_REQUIRED, "a tool whose reach a person has to allow does not stand in for another"
)


@dataclass(frozen=True, slots=True)
class Beyond:
    """What a call would reach that its feature set may not by itself."""

    feature: str
    scope: Scope


class Scopes:
    """Judges the reach of calls, and tells servers of it."""

    def __init__(
        self, hosting: Hosting, policy_of: Callable[[str], LivePolicy], holding: Holding
    ) -> None:
        self._hosting = hosting
        self._policy_of = policy_of
        self._holding = holding

    # Before a call leaves (`kernel.admission.Reaching`).

    def judge(self, call: Call, offer: Offer, arguments: object) -> Refusal | Beyond | None:
        """Why a call may not go, or what a person has to allow it to reach; else None."""
        by, policy = self._hosting.get(offer.server), self._policy_of(offer.server)
        if by is None and not policy.scope_of:
            return None
        # Of a server at another node only its tools are known here; that node looks once more.
        sets = None if by is None else by.declared.sets
        definition = offer.definition
        feature = named_in(definition) if sets is None else feature_of_tool(definition, sets)
        if by is not None and feature != WHOLE and feature not in by.enabled:
            self._note(call, offer, feature, "feature_not_enabled", Result.BLOCKED)
            return Refusal(TOOL_DISABLED, _not_enabled(offer, feature))
        pointer = policy.scope_of.get(offer.name)
        if pointer is None:
            return self._unsaid(by, policy, offer, feature, arguments)
        return self._reach(call, offer, (policy, feature, _is_scoped(by, feature)), arguments)

    def _unsaid(
        self, by: Hosted | None, policy: LivePolicy, offer: Offer, feature: str, arguments: object
    ) -> Beyond | None:
        """Where nobody said how to tell what it reaches, each call of a scoped tool is asked."""
        if not _is_scoped(by, feature) and _bounds(policy, feature) is None:
            return None
        return Beyond(feature, Scope(offer.name, cast("Mapping[str, Any]", arguments)))

    def _reach(
        self,
        call: Call,
        offer: Offer,
        known: tuple[LivePolicy, str, bool],
        arguments: object,
    ) -> Refusal | Beyond | None:
        policy, feature, is_scoped = known
        bounds = _bounds(policy, feature)
        denied = [each for of_set in policy.scopes.values() for each in of_set.blacklist]
        if bounds is None and not is_scoped and not policy.scopes:
            return None
        pointer = policy.scope_of[offer.name]
        texts, scope = found_at(arguments, pointer), scope_of(arguments, pointer)
        if scope is None:
            because = f"{pointer} of the arguments must say what the call is to reach"
            return Refusal(INVALID_TOOL_ARGS, because)
        ruling = strictest(ruled(each, bounds, denied) for each in texts)
        if ruling is Ruling.DENIED:
            self._note(call, offer, feature, ruling, Result.BLOCKED, scope.label)
            because = f"server {offer.server!r} may not reach {scope.label!r:.{_LONGEST_SHOWN}}"
            return Refusal(ACCESS_DENIED, because)
        if ruling is Ruling.ALLOWED:
            self._note(call, offer, feature, Ruling.ALLOWED, Result.SUCCESS, scope.label)
            return None
        return Beyond(feature, scope)

    def hold(
        self, call: Call, offer: Offer, standing: Standing, beyond: Beyond, frame: Frame
    ) -> Hold | Refusal:
        """Have a person asked whether a call may reach that."""
        if isinstance(call, Across):
            return _NOT_INSTEAD
        return HeldScope(self._holding, call, offer, standing, (beyond, frame))

    # With a call (`kernel.live.bearing.Bearer`).

    def carries(self, by: Hosted, call: Call, frame: Frame) -> bool:
        if frame.params is UNSET:
            return False
        # What a client itself says of a scope is nobody's word.
        return bool(by.policy.scope_of) or b'"scope"' in bytes(frame.params)

    async def bring(self, by: Hosted, call: Call, frame: Frame) -> Frame:
        params = jsonrpc.params_of(frame)
        pointer = by.policy.scope_of.get(jsonrpc.text(params.get("name")) or "")
        raw = params.get("arguments")
        scope = None
        if pointer is not None and raw is not None:
            scope = scope_of(jsonrpc.value(raw), pointer)
        kept: dict[str, object] = {n: each for n, each in params.items() if n != MEMBER}
        if scope is not None:
            kept[MEMBER] = features.scope_on_wire(scope)
        return jsonrpc.with_params(frame, jsonrpc.to_raw(kept))

    async def take(self, by: Hosted, call: Call, frame: Frame) -> Frame:
        return frame

    def _note(
        self, call: Call, offer: Offer, feature: str, outcome: str, result: Result, label: str = ""
    ) -> None:
        details = {"label": label[:_LONGEST_SHOWN]} if label else {}
        deed = Deed(
            *(offer.server, call.method, feature, "", outcome, call.outbox.actor.party),
            tool=offer.name,
            trace=call.traced(),
            details=details,
        )
        self._hosting.noting.note(Type.SCOPE_DECIDED, deed, result)


@dataclass(frozen=True, slots=True)
class OnlyDenials:
    """What is judged of calls from other nodes, where people were asked already."""

    scopes: Scopes

    def judge(self, call: Call, offer: Offer, arguments: object) -> Refusal | None:
        found = self.scopes.judge(call, offer, arguments)
        return found if isinstance(found, Refusal) else None

    def hold(
        self, call: Call, offer: Offer, standing: Standing, beyond: object, frame: Frame
    ) -> Refusal:
        return _NOT_INSTEAD


class HeldScope(HeldCall):
    """A call that waits until a person allows what it would reach.

    The answer is not used up: it is good for that scope, to whoever asked, for as long as it lasts.
    """

    def __init__(
        self,
        holding: Holding,
        call: Call,
        offer: Offer,
        standing: Standing,
        about: tuple[Beyond, Frame],
    ) -> None:
        self._beyond, frame = about
        super().__init__(holding, call, offer, standing, arguments_of(frame), frame)
        party = call.outbox.actor.party
        self.digest = digest_of(party, offer.server, self._beyond, holding.key)

    def _question(self, id: str, at: datetime, until: datetime) -> Ask:
        actor, offer, beyond = self.call.outbox.actor, self.offer, self._beyond
        message = (
            f"{actor.party} wants {offer.key} to reach {beyond.scope.label!r:.{_LONGEST_SHOWN}}"
        )
        return Ask(
            *(id, Kind.SCOPE, actor.party, offer.server, offer.name, self.digest),
            str(self.holding.redact(message)),
            *(shown(beyond, self.holding.redact), at, until),
            own=self.approvals.is_own(actor),
            trace=self.call.traced(),
        )

    async def _use(self, ask: Ask, go_on: GoOn) -> bool:
        refusal = await looked_at(self._changed_meanwhile)
        if refusal is None:
            refusal = await self._approved.intend(self.holding.steps, ask)
        if refusal is not None:
            self._turn_down(refusal)
        elif not self._is_over:
            self._is_over = True
            self._step_aside()
            await self._approved.send(self.approvals, ask, go_on)
        return True


def digest_of(party: str, server: str, beyond: Beyond, key: bytes) -> str:
    """What an allowance is bound to. (D-62)"""
    scope = [beyond.scope.label, dict(beyond.scope.payload)]
    return asks.digest(party, server, f"scope of {beyond.feature}", "", scope, key)


def shown(beyond: Beyond, redact: Callable[[object], object]) -> dict[str, object]:
    """What people read who are asked."""
    return {
        "feature_set": beyond.feature,
        "label": redact(beyond.scope.label),
        "payload": redact(dict(beyond.scope.payload)),
    }


def arguments_of(frame: Frame) -> object:
    raw = jsonrpc.params_of(frame).get("arguments")
    try:
        return {} if raw is None else jsonrpc.value(raw)
    except MalformedMessage:
        return {}


def _is_scoped(by: Hosted | None, feature: str) -> bool:
    found = None if by is None else by.declared.sets.get(feature)
    return found is not None and found.is_scoped


def _bounds(policy: LivePolicy, feature: str) -> features.Bounds | None:
    return policy.scopes.get(feature) or policy.scopes.get(ANY_SET)


def _not_enabled(offer: Offer, feature: str) -> str:
    return (
        f"{offer.key} belongs to the feature set {feature} of server {offer.server}, which is not "
        f"enabled; an operator can enable it in [servers.live], or by `comity features enable "
        f"{offer.server} {feature}`"
    )
