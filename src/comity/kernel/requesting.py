"""`mgp/tools/request`: what somebody lacks is found and put into its toolbelt. (MGP §16.6)

Rule 1: each capability is sought for itself, first among tools of the risk that is preferred.
Rule 2: a tool that is hardly likely to be meant is no answer; and that none is likely enough lets
        nothing be made by itself: who makes tools decides that by grants and switches of its own.
Rule 3: a tool about whose calls a person is asked is found and not loaded: it waits for approval.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from comity.kernel.catalog import Offer
from comity.kernel.discovering import Discovering, fresh
from comity.kernel.grants import Judge
from comity.kernel.own_methods import Asked, OwnMethods
from comity.kernel.toolbelts import Belt, Toolbelts
from comity.kernel.withheld import Withheld
from comity.rules.meta_tools import MetaTool
from comity.rules.search import Query, round_robin
from comity.rules.toolbelt import Loaded
from comity.wire import tool_discovery
from comity.wire.grants import Effect
from comity.wire.mcp import CALL_TOOL
from comity.wire.negotiation import Extension
from comity.wire.parties import Actor
from comity.wire.tool_discovery import Lacking, Outcome, Wanted

FLOOR: Final = 0.1
"""Below this a tool shares next to nothing with what is wanted."""

FOR_EACH: Final = 3
_ASKED: Final = "a person is asked about each call; call it, and wait for the answer"
_NO_ROOM: Final = "its definition does not fit into the budget; it can be called all the same"
_NONE: Final = "no tool that you may call does this"


class Creation(Protocol):
    """Who lets tools be made that do not exist yet."""

    async def create(self, asked: Asked, wanted: Wanted) -> Mapping[str, object] | None:
        """What its answer says beside its status; None where this one may not have any made."""
        ...


@dataclass(slots=True)
class _Sought:
    """What was found for one capability."""

    capability: str
    usable: list[Offer] = field(default_factory=list[Offer])
    pending: Lacking | None = None


class Requesting:
    """Answers those who say what they lack."""

    def __init__(
        self, discovering: Discovering, judge: Judge, withheld: Withheld | None = None
    ) -> None:
        self._discovering = discovering
        self._judge = judge
        self._withheld = withheld
        self.creation: Creation | None = None

    @property
    def belts(self) -> Toolbelts:
        return self._discovering.belts

    def join(self, methods: OwnMethods) -> None:
        methods.add(tool_discovery.REQUEST, Extension.TOOL_DISCOVERY, self._request)

    async def request(self, asked: Asked, wanted: Wanted) -> dict[str, object]:
        """Raises Unavailable."""
        call, actor = asked.call, asked.actor
        self._discovering.count(call, MetaTool.REQUEST)
        needs = wanted.capabilities or (wanted.context,)
        sought = [await self._sought(actor, need, wanted) for need in needs]
        belts = self._discovering.belts
        belt = belts.of(call)
        by_key = {offer.key: offer for each in sought for offer in each.usable}
        keys = [[offer.key for offer in each.usable] for each in sought]
        chosen = round_robin(keys, self._discovering.results)
        loaded = belts.load(belt, [by_key[key] for key in chosen])
        lacking = _lacking(sought, loaded)
        status = _status(sought, loaded, lacking)
        made = None
        if status is Outcome.UNAVAILABLE and not by_key and self.creation is not None:
            made = await self.creation.create(asked, wanted)
            status = status if made is None else Outcome.CREATING
        there = [key for key in chosen if key not in loaded.left_out]
        if self._discovering.log is not None:
            self._discovering.log.requested(call, wanted, status, there)
        result = self._told(belt, loaded, [by_key[key] for key in there])
        told = [each.told() for each in lacking]
        return {"status": status, "tools_unavailable": told, **result, **(made or {})}

    def _told(self, belt: Belt, loaded: Loaded, offers: Sequence[Offer]) -> dict[str, object]:
        result: dict[str, object] = {
            "tools_loaded": [self._discovering.shown(belt, offer) for offer in offers],
            "session_tools_count": belt.tools.count,
            "context_tokens_added": loaded.tokens_added,
            "token_count": self._discovering.counted,
        }
        return {**result, "evicted": list(loaded.evicted)} if loaded.evicted else result

    async def _sought(self, actor: Actor, need: str, wanted: Wanted) -> _Sought:
        sought = _Sought(need)
        for query in _queries(need, wanted):
            findings = await self._discovering.finder.find(actor, query)
            likely = [each.offer for each in findings.found if each.score >= FLOOR]
            for offer in likely:
                if not self._is_asked(actor, offer):
                    sought.usable.append(offer)
                elif sought.pending is None:
                    sought.pending = _pending(need, offer, _ASKED)
            if sought.usable:
                sought.usable = sought.usable[:FOR_EACH]
                return sought
        waiting = None if self._withheld is None else self._withheld.find(actor, need)
        if sought.pending is None and waiting is not None:
            sought.pending = _pending(need, waiting.offer, waiting.because, waiting.ask)
        return sought

    def _is_asked(self, actor: Actor, offer: Offer) -> bool:
        judged = self._judge.judge(actor, CALL_TOOL, offer.server, offer.name)
        return judged.effect is Effect.ASK

    async def _request(self, asked: Asked) -> Mapping[str, object]:
        return fresh(asked, await self.request(asked, tool_discovery.wanted(asked.params)))


def _queries(need: str, wanted: Wanted) -> list[Query]:
    """With what it takes and gives, then without; of the preferred risk, then of any."""
    plain = need.replace("_", " ")[: tool_discovery.LONGEST_QUERY]
    whole = " ".join([plain, *wanted.input_types, *wanted.output_types])
    risks = dict.fromkeys((wanted.preferred_risk_level, None))
    texts = dict.fromkeys((whole[: tool_discovery.LONGEST_QUERY], plain))
    return [Query(text, risk_level_max=risk) for risk in risks for text in texts]


def _pending(need: str, offer: Offer, because: str, ask: str = "") -> Lacking:
    return Lacking(Outcome.PENDING_APPROVAL, need, offer.key, offer.server, because, ask)


def _met(sought: _Sought, loaded: Loaded) -> bool:
    return any(offer.key not in loaded.left_out for offer in sought.usable)


def _lacking(sought: Sequence[_Sought], loaded: Loaded) -> list[Lacking]:
    """Why each capability that has no tool now has none."""
    found: list[Lacking] = []
    for each in sought:
        if _met(each, loaded):
            continue
        if each.usable:
            best = each.usable[0]
            found.append(Lacking("budget", each.capability, best.key, best.server, _NO_ROOM))
        else:
            none = Lacking(Outcome.UNAVAILABLE, each.capability, message=_NONE)
            found.append(each.pending or none)
    return found


def _status(sought: Sequence[_Sought], loaded: Loaded, lacking: Sequence[Lacking]) -> Outcome:
    if not lacking:
        return Outcome.FULFILLED
    if any(_met(each, loaded) for each in sought):
        return Outcome.PARTIAL
    waits = any(each.reason == Outcome.PENDING_APPROVAL for each in lacking)
    return Outcome.PENDING_APPROVAL if waits else Outcome.UNAVAILABLE
