"""A server asks to act where it may not by itself: no, yes, or a person's to say. (MCPL §7.4)

Rule 1: what a server calls its scope denies or asks. It allows only what the payload names too, and
        nothing else that looks like a place. (D-62)
Rule 2: what a person allows is bound to the server, the feature set, the label and the payload, and
        ends by itself; until then it is not asked again. No grant is written by it. (D-102)
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

from comity.kernel.approvals import Approvals
from comity.kernel.live.hosted import Told
from comity.kernel.live.noting import Deed, Noting
from comity.kernel.live.scopes import ANY_SET, Beyond, digest_of, shown
from comity.rules import asks
from comity.rules.paths import Ruling
from comity.rules.permissions import SUBJECT
from comity.rules.scopes import claimed, is_denied, normal
from comity.wire import features
from comity.wire.asks import Ask, Kind, State
from comity.wire.audit import Result, Type
from comity.wire.errors import FEATURE_NOT_ENABLED, FEATURE_UNKNOWN, MalformedMessage
from comity.wire.features import Scope
from comity.wire.lifecycle import moment

ENRICHED: Final = "dev.comity/scope"
"""The member of a payload that is ours: how we read the label, the channel that it names, and until
when it is allowed."""

type ChannelOf = Callable[[str, str], str | None]
"""The id of the channel of a server that has this label; None where there is not just one."""

_LONGEST_SHOWN: Final = 300


class Elevating:
    """Answers `scope/elevate`."""

    def __init__(
        self,
        approvals: Approvals,
        noting: Noting,
        redact: Callable[[object], object],
        key: bytes,
        channel_of: ChannelOf = lambda server, label: None,
    ) -> None:
        self._approvals = approvals
        self._noting = noting
        self._redact = redact
        self._key = key
        self._channel_of = channel_of

    async def answer(self, told: Told) -> Mapping[str, object]:
        name, scope = features.elevation_in(told.params)
        by = told.by
        if name not in by.declared.sets:
            raise MalformedMessage("Unknown feature set", FEATURE_UNKNOWN)
        if name not in by.enabled:
            raise MalformedMessage("Feature set not enabled", FEATURE_NOT_ENABLED)
        bounds = by.policy.scopes.get(name) or by.policy.scopes.get(ANY_SET)
        channel = self._channel_of(by.server, scope.label)
        ruling = claimed(scope, bounds)
        if channel is not None and bounds is not None and is_denied(channel, bounds.blacklist):
            ruling = Ruling.DENIED
        if ruling is Ruling.OUTSIDE:
            return await self._asked(by.server, Beyond(name, scope))
        self._note(by.server, Beyond(name, scope), ruling, ruling is Ruling.ALLOWED)
        if ruling is Ruling.DENIED:
            return {"approved": False, "reason": "this scope is denied to the feature set"}
        return {"approved": True, "payload": enriched(scope, channel=channel)}

    async def _asked(self, server: str, beyond: Beyond) -> Mapping[str, object]:
        ask = await self._ask(server, beyond)
        while ask.is_open and ask.expires_at > self._approvals.clock():
            ask = await self._approvals.until_other(ask)
        ask = await self._approvals.expired(ask) if ask.is_open else ask
        is_allowed = ask.state is State.ACCEPTED
        self._note(server, beyond, str(ask.state), is_allowed)
        if is_allowed:
            channel = self._channel_of(server, beyond.scope.label)
            told = enriched(beyond.scope, ask.expires_at, channel)
            return {"approved": True, "payload": told}
        said = next((each.reason for each in reversed(ask.answers) if each.reason), "")
        return {"approved": False, "reason": said or f"nobody allowed it: {ask.state}"}

    async def _ask(self, server: str, beyond: Beyond) -> Ask:
        """What is open for this very scope, or was answered and still counts; else a new one."""
        asker = SUBJECT + server
        digest = digest_of(asker, server, beyond, self._key)
        known = await self._approvals.asks.latest(digest)
        if known is not None and self._counts(known):
            return known

        def question(id: str, at: datetime, until: datetime) -> Ask:
            label = f"{beyond.scope.label!r:.{_LONGEST_SHOWN}}"
            message = f"server {server} wants to reach {label} with {beyond.feature}"
            return Ask(
                *(id, Kind.SCOPE, asker, server, "", digest),
                str(self._redact(message)),
                *(shown(beyond, self._redact), at, until),
            )

        return await self._approvals.open(self._approvals.new(question))

    def _counts(self, ask: Ask) -> bool:
        now, ended = self._approvals.clock(), ask.ended_at or ask.created_at
        if ask.state in asks.LIVE:
            return ask.expires_at > now
        lately = now - ended < self._approvals.options.declined_for
        return ask.state is State.DECLINED and lately

    def _note(self, server: str, beyond: Beyond, outcome: str, is_allowed: bool) -> None:
        details = {"label": beyond.scope.label[:_LONGEST_SHOWN]}
        deed = Deed(server, features.ELEVATE, beyond.feature, outcome=outcome, details=details)
        result = Result.SUCCESS if is_allowed else Result.BLOCKED
        self._noting.note(Type.SCOPE_DECIDED, deed, result)


def enriched(
    scope: Scope, until: datetime | None = None, channel: str | None = None
) -> dict[str, object]:
    """The payload, with how the label was read and how long it is allowed. (§7.5)"""
    ours = {"label": normal(scope.label)}
    if until is not None:
        ours["until"] = moment(until)
    if channel is not None:
        ours["channelId"] = channel
    return {**scope.payload, ENRICHED: ours}
