"""One live server as it is just now: what it declared, what it may do, and how it is spoken to."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from msgspec import Raw

from comity.kernel.listing import envelope
from comity.kernel.live.noting import OK, Deed, Noting
from comity.kernel.live.reversing import Reverse
from comity.kernel.pulse import LiveLink
from comity.kernel.question import Errand
from comity.rules.live_policy import UNDECIDED, LivePolicy, SetStanding, required
from comity.wire import jsonrpc, mcp
from comity.wire.audit import Result, Type
from comity.wire.errors import (
    UPSTREAM_FAILED,
    UPSTREAM_SLOW,
    MalformedMessage,
    Unavailable,
)
from comity.wire.features import Declared, FeatureSet, Use
from comity.wire.jsonrpc import UNSET, Frame, Id
from comity.wire.parties import GATEWAY

log = logging.getLogger(__name__)

TELL_SECONDS: Final = 10.0
MOST_TOLD: Final = 1_000
"""How much may wait to be told a server that takes one thing after the other."""

_NOTHING: Final = Raw(b"{}")
_PIECES: Final = "/chunk"
"""How methods end that tell a part of something; the whole is written down."""


@dataclass(slots=True)
class Hosted:
    """One live server as it is just now."""

    server: str
    link: LiveLink
    declared: Declared
    policy: LivePolicy
    enabled: frozenset[str]
    reverse: Reverse | None = None
    # How each declared set stands, by which snapshot of grants, and until when at the most.
    standings: Mapping[str, SetStanding] = field(default_factory=dict[str, SetStanding])
    access: object = None
    until: datetime | None = None
    noting: Noting = field(default_factory=Noting)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _waiting: int = 0

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

    def standing(self, feature: str) -> SetStanding:
        return self.standings.get(feature, UNDECIDED)

    async def ask(self, method: str, params: Mapping[str, object], within: timedelta) -> Raw:
        """What the server answers. Raises Unavailable, or MalformedMessage with its own code."""
        try:
            answer = await self._answer(method, params, within)
        except (Unavailable, MalformedMessage) as error:
            self._note(method, params, error.fault.error_type, Result.FAILURE)
            raise
        self._note(method, params, OK, Result.SUCCESS)
        return answer

    async def _answer(self, method: str, params: Mapping[str, object], within: timedelta) -> Raw:
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
        if not method.endswith(_PIECES):
            self._note(method, params, OK, Result.SUCCESS)
        if not self.is_modern:
            self.link.tell(jsonrpc.notification(method, params))
            return
        if self._waiting >= MOST_TOLD:
            log.info("server %r hears too slowly; it is not told %s", self.server, method)
            return
        self._waiting += 1
        try:
            # One after the other: what is told last counts.
            async with self._turn, asyncio.timeout(TELL_SECONDS):
                await self._request(method, params)
        except (Unavailable, TimeoutError) as error:
            log.info("server %r did not hear %s: %s", self.server, method, error)
        finally:
            self._waiting -= 1

    async def _request(self, method: str, params: Mapping[str, object]) -> Frame:
        """In the modern era all that is told is asked: stock peers drop what they did not ask."""
        if not self.is_modern:
            return await self.link.request(method, params)
        headers = ((mcp.METHOD_HEADER, method.encode()),)
        return await self.link.request(method, {**params, "_meta": envelope()}, headers)

    def _note(
        self, method: str, params: Mapping[str, object], outcome: str, result: Result
    ) -> None:
        feature, inference = (str(params.get(name, "")) for name in ("featureSet", "inferenceId"))
        deed = Deed(self.server, method, feature, inference, outcome, by=GATEWAY)
        self.noting.note(Type.FEATURE_USED, deed, result)


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
