"""Calls that are made again, or at another tool, where their operator allows it. (MGP §14.6, S9)

Rule 1: whether and when is said in `comity.rules.retries`; only tools that an operator marked come
        here at all, and no other call pays for it.
Rule 2: all attempts are one call to its client: one deadline, one withdrawal, one answer.
Rule 3: another tool is called by the same actor through the whole gate; where it may not, or where
        that fails too, the client is told of the first failure.
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec import Raw

from comity.kernel.across import Across, Way
from comity.kernel.call import Call
from comity.kernel.catalog import Offer
from comity.kernel.chores import Chores
from comity.kernel.question import Errand
from comity.kernel.tallies import ERROR, OK
from comity.rules import retries, rounds
from comity.rules.conversation import Conversation
from comity.rules.names import SEPARATOR, public_name
from comity.rules.negotiation import Terms
from comity.rules.policies import ServerPolicy, ToolPolicy
from comity.rules.refusals import Refusal
from comity.rules.retries import Failure, Plan
from comity.wire import jsonrpc
from comity.wire.errors import MalformedMessage, Unavailable
from comity.wire.exposition import Family
from comity.wire.jsonrpc import UNSET, Frame

log = logging.getLogger(__name__)

MOST_PLANS: Final = 100_000
FALLBACK_KEY: Final = "dev.comity/fallback"
"""Where a result says that another tool gave it."""

type Told = Callable[[Call, int, str], None]
"""Who hears of each attempt that is made again: the call, which attempt it is, and why."""


@dataclass(frozen=True, slots=True)
class Means:
    """How a desk sends this call again as it was, and another one through the whole gate.

    At a server's own door its tools have their own names, and there are no others.
    """

    again: Callable[[], Coroutine[Any, Any, None]]
    instead: Callable[[Call, Frame], Awaitable[None]]
    is_for_all_servers: bool


class Retries:
    """Which tools may be called again; and every attempt, counted."""

    def __init__(
        self,
        policy_of: Callable[[str], ServerPolicy | None],
        read_only: int = 0,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._policy_of = policy_of
        self._read_only = read_only
        self._plans: dict[tuple[str, str], tuple[ServerPolicy | None, bytes, Plan | None]] = {}
        self._made: Counter[tuple[str, str, str]] = Counter()
        self._replaced: Counter[tuple[str, str]] = Counter()
        self.chance = chance
        self.chores = Chores("calls that are made again")
        self.told: list[Told] = [self._count]

    def attend(self, call: Call, offer: Offer, frame: Frame, means: Means) -> None:
        """Have a call made again if it fails, where its tool may be."""
        plan = self.plan_of(offer)
        # What its client has answered meanwhile belongs to one attempt alone.
        call.tool = offer.name
        if plan is not None and rounds.round_in(frame)[1] is None:
            call.retrying = Retrying(self, plan, offer, frame, means)

    def plan_of(self, offer: Offer) -> Plan | None:
        policy = self._policy_of(offer.server)
        known = self._plans.get((offer.server, offer.name))
        if known is not None and known[0] is policy and known[1] is offer.definition:
            return known[2]
        tool = ToolPolicy() if policy is None else policy.of_tool(offer.name)
        plan = Plan(tool.idempotent, tool.max_retries, tool.fallback_tool)
        if self._read_only and not tool.idempotent and _only_reads(offer.definition):
            plan = Plan(True, tool.max_retries or self._read_only, tool.fallback_tool)
        found = None if plan == Plan() else plan
        if len(self._plans) >= MOST_PLANS:
            # At a server's own door a caller can make up names without end.
            self._plans.clear()
        self._plans[offer.server, offer.name] = (policy, offer.definition, found)
        return found

    def tell(self, call: Call, attempt: int, why: str) -> None:
        for hear in self.told:
            hear(call, attempt, why)

    def replaced(self, offer: Offer) -> None:
        self._replaced[offer.server, offer.name] += 1

    def families(self) -> list[Family]:
        return [
            Family(
                "comity_retries_total",
                "counter",
                "Calls that the gateway made again by itself, by why the attempt before failed.",
                [
                    ((("server", server), ("tool", tool), ("reason", why)), number)
                    for (server, tool, why), number in self._made.items()
                ],
            ),
            Family(
                "comity_fallbacks_total",
                "counter",
                "Calls that were made at another tool, because this one failed.",
                [
                    ((("server", server), ("tool", tool)), number)
                    for (server, tool), number in self._replaced.items()
                ],
            ),
        ]

    def _count(self, call: Call, attempt: int, why: str) -> None:
        server = "" if call.counted is None else call.counted.server
        self._made[server, call.tool or "", why] += 1
        told = {"trace_id": call.trace_id()}
        log.info("server %r: attempt %d, after %s", server, attempt + 1, why, extra=told)


class Retrying:
    """One call's attempts. While none is under way it stands where the call's link would."""

    def __init__(
        self, retries: Retries, plan: Plan, offer: Offer, frame: Frame, means: Means
    ) -> None:
        self.conversation: Conversation[Errand] = Conversation()
        self.mgp: Terms | None = None
        self.was_sent = False
        self._retries = retries
        self._plan = plan
        self._offer = offer
        self._frame = frame
        self._means = means
        self._made = 0
        self._is_over = False
        self._later: asyncio.TimerHandle | None = None

    @property
    def idempotent(self) -> bool:
        return self._plan.idempotent

    @property
    def fallback_tool(self) -> str:
        """What the client itself may call instead, unless that has been tried."""
        return "" if self._is_over else self._instead

    @property
    def _instead(self) -> str:
        """The other tool as this door knows it; none where it does not."""
        named, server = self._plan.fallback_tool, self._offer.server
        own = named.removeprefix(f"{server}{SEPARATOR}")
        if not named or SEPARATOR in own:
            return named if self._means.is_for_all_servers else ""
        return public_name(server, own) if self._means.is_for_all_servers else own

    def hears(self, call: Call, frame: Frame) -> bool:
        """Whether a server's error is not the end of the call."""
        return not self._is_over and self._goes_on(
            call, retries.told_by_server(frame), lambda: call.answered(frame)
        )

    def survives(self, call: Call, error: Unavailable | MalformedMessage) -> bool:
        """Whether a failure on the way is not the end of the call."""
        after = error.retry_after if isinstance(error, Unavailable) else None
        failure = retries.of_fault(error.fault, after, sent=self._is_sent(call))
        return not self._is_over and self._goes_on(call, failure, lambda: call.failed(error))

    def _goes_on(self, call: Call, failure: Failure, end: Callable[[], None]) -> bool:
        self.was_sent = self._is_sent(call)
        pause = retries.pause(self._plan, failure, self._made, self._retries.chance())
        left = 0.0 if call.underway is None else call.underway.left(call)
        if pause is None or pause.total_seconds() >= left or call.outbox.final:
            return self._falls_back(call, failure, end)
        self._made += 1
        self._retries.tell(call, self._made, failure.why)
        call.link, call.minted = self, 0
        loop = asyncio.get_running_loop()
        self._later = loop.call_later(pause.total_seconds(), self._begin, call)
        return True

    def _begin(self, call: Call) -> None:
        self._later = None
        self._retries.chores.start(self._attempt(call))

    async def _attempt(self, call: Call) -> None:
        if call.outbox.final:
            return
        try:
            await self._means.again()
        except (Unavailable, MalformedMessage) as error:
            call.failed(error)

    def _falls_back(self, call: Call, failure: Failure, end: Callable[[], None]) -> bool:
        allowed = retries.may_be_repeated(self._plan, failure) and not call.outbox.final
        if not self._instead or not allowed:
            return False
        self._is_over = True
        self._retries.replaced(self._offer)
        params = {**jsonrpc.params_of(self._frame), "name": self._instead}
        frame = jsonrpc.with_params(self._frame, jsonrpc.to_raw(params))
        first = self._offer.key if self._means.is_for_all_servers else self._offer.name
        other = Instead(frame, call, first, end)
        self._retries.chores.start(other.go(self._means))
        return True

    def _is_sent(self, call: Call) -> bool:
        return self.was_sent or (call.link is not None and call.link is not self)

    # What the client's call does with its link, which for now is this.

    def tell(self, frame: Frame) -> None:
        """Nobody is there who could be told anything."""

    def forsake(self, minted: int, reason: Raw | None) -> None:
        """The client has withdrawn its call, or its deadline has passed."""
        if self._later is not None:
            self._later.cancel()
            self._later = None

    def throttle(self, minted: int, paused: bool) -> None:
        """No stream is open."""


class Instead(Across):
    """The call of another tool, in front of which the client's own stands."""

    def __init__(self, frame: Frame, front: Call, instead_of: str, end: Callable[[], None]) -> None:
        super().__init__(frame, front, Way("", _nowhere))
        self.underway = None
        self._recorder = None if front.underway is None else front.underway.recorder
        self._instead_of = instead_of
        self._end = end
        # What the first tool's era made of its answers is nothing to this one's.
        front.adapt, front.retell = self._adapted, self._retold

    async def go(self, means: Means) -> None:
        try:
            await means.instead(self, self.frame)
        except (Unavailable, MalformedMessage):
            self._give_up()

    def answered(self, frame: Frame, status: int = 200) -> None:
        if frame.error is not UNSET or _asks(frame):
            # What it asks would be asked of somebody who called another tool.
            self._give_up()
            self.end(None)
        else:
            self._write_down(OK)
            super().answered(frame, status)

    def failed(self, error: Unavailable | MalformedMessage) -> None:
        self._give_up()

    def turn_down(self, refusal: Refusal) -> None:
        self._give_up()

    def hold(self) -> None:
        if self.front is not None:
            self.front.hold()

    def release(self) -> None:
        if self.front is not None:
            self.front.release()

    def _give_up(self) -> None:
        """It is of no use to the client what became of a tool that it did not call."""
        self._write_down(ERROR)
        front, self.front = self.front, None
        if front is not None:
            front.adapt = front.retell = None
            self._end()

    def _write_down(self, outcome: str) -> None:
        """What it was about to do is in the journal, so what became of that must be too."""
        if self._recorder is not None and self.record is not None:
            self._recorder.conclude(self, outcome, None, _nothing_more)

    def _adapted(self, frame: Frame) -> Frame:
        frame = frame if self.adapt is None else self.adapt(frame)
        assert frame.result is not UNSET
        result = jsonrpc.members(frame.result)
        meta = jsonrpc.members(result["_meta"]) if "_meta" in result else {}
        named = {"tool": jsonrpc.params_of(self.frame)["name"], "instead_of": self._instead_of}
        told = jsonrpc.to_raw({**result, "_meta": {**meta, FALLBACK_KEY: named}})
        return msgspec.structs.replace(frame, result=told)

    def _retold(self, frame: Frame) -> Frame | None:
        return frame if self.retell is None else self.retell(frame)


def _asks(frame: Frame) -> bool:
    try:
        return rounds.wanted_in(frame) is not None
    except MalformedMessage:
        return True


def _nothing_more() -> None:
    """Its client hears of the call that it made itself."""


def _nowhere(call: Call, frame: Frame) -> None:
    """A desk finds its way."""


def _only_reads(definition: bytes) -> bool:
    """Whether a tool says of itself that it changes nothing."""
    try:
        said = jsonrpc.members(Raw(definition)).get("annotations", Raw(b"{}"))
        return bytes(jsonrpc.members(said).get("readOnlyHint", b"")) == b"true"
    except MalformedMessage:
        return False
