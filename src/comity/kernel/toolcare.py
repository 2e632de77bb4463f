"""How every tool stands: as it was accepted or not, with what risk, by which permissions.

Rule 1: a standing is of one very definition. One that nobody has seen before is looked at anew.
Rule 2: a definition that is not the accepted one cannot be called, nor seen by those who call.
Rule 3: what is known of a tool is worked out once; a call finds it in a dictionary.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from msgspec import Raw

from comity.kernel.breath import Breath
from comity.kernel.catalog import Catalog, Kind, Offer
from comity.kernel.chores import Chores
from comity.kernel.definition_audit import DefinitionAudit
from comity.kernel.grants import Clock
from comity.kernel.permits import Permit, Permits
from comity.kernel.pinned import Pinned
from comity.kernel.trouble_log import TroubleLog
from comity.rules.examined import Examined, examine, says_the_same
from comity.rules.looks import Finding, Look
from comity.rules.namesakes import Namesakes
from comity.rules.policies import Definitions, Fallback, ServerPolicy, Suspicious, ToolPolicy
from comity.rules.precedents import why_never
from comity.rules.refusals import Refusal
from comity.rules.risk import effective_risk, is_confirmed_always, must_be_confirmed, trust_in
from comity.rules.standings import State, refusal_for, state_of
from comity.rules.validators import UNRULED, Meaning, Rules
from comity.wire import jsonrpc
from comity.wire.errors import Unavailable
from comity.wire.parties import GATEWAY
from comity.wire.pins import Pin
from comity.wire.security import Risk

log = logging.getLogger(__name__)

ONE_LOOK: Final = 2_000
"""What a look at a definition costs at least, as if it had so many bytes more."""

ONE_COMPARISON: Final = 2_000
MOST_COMPARED: Final = 1_000_000
"""Bytes, and so much for each, that are compared between two looks: some hundred milliseconds."""

type PolicyOf = Callable[[str], ServerPolicy]


@dataclass(frozen=True, slots=True)
class ToolStanding:
    """What is known of one definition of a tool.

    `validators` must agree to its arguments; those in `advised` are only asked what they think.
    """

    state: State
    refusal: Refusal | None
    must_be_confirmed: bool
    is_confirmed_always: bool
    cost: int
    risk: Risk
    needs: tuple[str, ...]
    validators: tuple[str, ...]
    advised: tuple[str, ...]
    rules: Rules
    findings: tuple[Finding, ...]
    digest: str
    quorum: int = 1
    # Why no answer to one of its calls may stand for others.
    asked_each_time: str | None = "nobody has looked at it"


@dataclass(frozen=True, slots=True)
class _Held:
    definition: bytes
    generation: int
    standing: ToolStanding


class ToolCare:
    """The standings of all tools, kept as their servers, their pins and policies change."""

    def __init__(
        self,
        catalog: Catalog,
        policy_of: PolicyOf,
        permits: Permits,
        pins: Pinned,
        clock: Clock = lambda: datetime.now(UTC),
    ) -> None:
        self.permits = permits
        self.pins = pins
        self._catalog = catalog
        self._policy_of = policy_of
        self._clock = clock
        self._examined: dict[str, dict[str, Examined]] = {}
        self._held: dict[tuple[str, str], _Held] = {}
        # What a server said otherwise to somebody than to us, though it means the same.
        self._same: dict[tuple[str, str], tuple[bytes, bytes]] = {}
        self._compared = 0
        self._names = Namesakes()
        self._vetting = asyncio.Lock()
        self._chores = Chores("the care for tools")
        # Who writes down what becomes of definitions; of each change that was told, its digest.
        self.audit: DefinitionAudit | None = None
        # Who is told of a server whose tools may stand otherwise, though it announced nothing.
        self.unsettled: Callable[[str], None] = lambda _: None
        self._told: dict[tuple[str, str], str] = {}
        self._at_sight: list[Pin] = []
        self._unknown = TroubleLog(
            log,
            "Cannot load the accepted tool definitions of server %r and others: %s",
            "The accepted tool definitions are loaded.",
        )
        catalog.watch(self._noticed)
        permits.watch(lambda server: self._catalog.announce(server, Kind.TOOL))

    def standing(self, offer: Offer) -> ToolStanding:
        """How this very definition stands."""
        permit = self.permits.of(offer.server)
        held = self._held.get((offer.server, offer.name))
        if (
            held is not None
            and held.generation == permit.generation
            and (held.definition is offer.definition or held.definition == offer.definition)
        ):
            return held.standing
        return self._judge(offer, permit)

    def rules_of(self, offer: Offer) -> Rules:
        """What validators are to know of a tool; the same as long as nothing has changed."""
        return self.standing(offer).rules

    def as_shown(self, offer: Offer, entry: Mapping[str, Raw]) -> Offer:
        """An offer as a server just described it to somebody, if that is other than we know it."""
        shown = jsonrpc.to_json({**entry, "name": offer.key})
        if shown == offer.definition:
            return offer
        place = (offer.server, offer.name)
        if self._same.get(place) == (offer.definition, shown):
            return offer
        self._compared += len(shown) + ONE_COMPARISON
        if self._compared > MOST_COMPARED:
            # It is hidden for now: no server may have us read all day.
            return replace(offer, definition=b"")
        if not says_the_same(offer.definition, shown, offer.name):
            return replace(offer, definition=shown)
        self._same[place] = (offer.definition, shown)
        return offer

    async def vet(self, server: str, offers: Sequence[Offer]) -> None:
        """Look at what a server lists before anybody is shown it; in pieces, as it may be long."""
        async with self._vetting:
            await self._load(server)
            before, seen = self._examined.get(server, {}), dict[str, Examined]()
            breath = Breath()
            for offer in offers:
                await breath.take(ONE_LOOK + len(offer.definition))
                old = before.get(offer.name)
                is_old = old is not None and old.definition == offer.definition
                seen[offer.name] = old if old is not None and is_old else self._examine(offer)
            self._examined[server] = seen
            await self._rename(server, before.keys() - seen.keys(), seen.keys() - before.keys())
            self.permits.need(server, (name for each in seen.values() for name in each.needs or ()))
            for offer in offers:
                await breath.take(ONE_LOOK + len(offer.definition))
                # Whatever is seen for the first time, and may be, is accepted here.
                self.standing(offer)
                seen[offer.name].fresh.clear()
            self._tell(server, offers)

    async def accept(self, server: str, digests: Mapping[str, str], by: str) -> list[str]:
        """Accept tools by their names, each as it has this digest; gives the names. Raises."""
        pins: list[Pin] = []
        for name, digest in digests.items():
            offer = self._catalog.offered(server, Kind.TOOL, name)
            written = b"" if offer is None else self._examine(offer).written()
            if offer is not None and digest == self.standing(offer).digest and written:
                pins.append(Pin(server, name, digest, written, by, self._clock()))
        await self.pins.accept_now(pins)
        if self.audit is not None and pins:
            self.audit.accepted(server, pins, by)
        self.refresh(server)
        return [pin.tool for pin in pins]

    def written(self, offer: Offer) -> bytes:
        """The canonical definition of an offer; nothing where it cannot be read."""
        return self._examine(offer).written()

    def offered(self, server: str, tool: str) -> Offer | None:
        """A tool of a server's by its own name, if that server lists it."""
        return self._catalog.offered(server, Kind.TOOL, tool)

    def offers_of(self, server: str) -> Iterable[Offer]:
        """What a server lists, also what nobody is shown."""
        for name in self._catalog.names(server, Kind.TOOL):
            offer = self.offered(server, name)
            if offer is not None:
                yield offer

    def refresh(self, server: str) -> None:
        """Judge all tools of a server anew: its policy, or what was accepted of it, has changed."""
        for name in self._examined.get(server, ()):
            self._held.pop((server, name), None)
        self._catalog.announce(server, Kind.TOOL)

    def pins_changed(self, server: str) -> None:
        """Somebody, somewhere, accepted something of a server, or of all if it has no name."""
        for name in [server] if server else list(self._examined):
            self._chores.start(self._reload(name))

    def look(self) -> None:
        """Try again what could not be known, and see what has expired."""
        self._compared = 0
        self.permits.look()
        self.pins.look()
        for server in self._examined:
            if not self.pins.is_known(server) and not len(self._chores):
                self._chores.start(self._reload(server))

    async def settle(self) -> None:
        """Until all is done that was begun."""
        await self._chores.finish()
        await self.permits.settle()
        await self.pins.settle()

    def stop(self) -> None:
        for each in (self._chores, self.permits, self.pins):
            each.cancel() if isinstance(each, Chores) else each.stop()

    async def _load(self, server: str, *, again: bool = False) -> None:
        try:
            await self.pins.load(server, again=again)
        except Unavailable as error:
            self._unknown.begin(server, error)
        else:
            self._unknown.end()

    async def _reload(self, server: str) -> None:
        async with self._vetting:
            before = dict(self.pins.of(server))
            await self._load(server, again=True)
            if dict(self.pins.of(server)) != before or not before:
                self.refresh(server)

    async def _rename(self, server: str, gone: Iterable[str], new: Iterable[str]) -> None:
        """Keep in mind which names there are; those that look like them are judged anew."""
        now = self._clock().timestamp()
        breath = Breath()
        for name in gone:
            await breath.take(ONE_LOOK)
            self._held.pop((server, name), None)
            self._same.pop((server, name), None)
            self._told.pop((server, name), None)
            self._names.remove(server, name)
            self._forget_alike(name)
        for name in new:
            await breath.take(ONE_LOOK)
            accepted = self.pins.get(server, name)
            since = accepted.at.timestamp() if accepted is not None and accepted.at else now
            self._names.add(server, name, since)
            self._forget_alike(name)

    def _forget_alike(self, name: str) -> None:
        for place in self._names.alike(name):
            self._held.pop(place, None)
            self.unsettled(place[0])

    def _noticed(self, server: str, kind: Kind) -> None:
        """A server that offers nothing any more cannot be taken for another."""
        if kind is not Kind.TOOL or self._catalog.count(server, kind):
            return
        for name in self._examined.pop(server, {}):
            self._held.pop((server, name), None)
            self._same.pop((server, name), None)
            self._names.remove(server, name)
            self._forget_alike(name)

    def _examine(self, offer: Offer) -> Examined:
        known = self._examined.get(offer.server, {}).get(offer.name)
        if known is not None and known.definition == offer.definition:
            return known
        return examine(offer.definition, offer.name)

    def _judge(self, offer: Offer, permit: Permit) -> ToolStanding:
        policy = self._policy_of(offer.server)
        tool, seen = policy.of_tool(offer.name), self._examine(offer)
        findings = self._findings(offer, seen, policy)
        accepted = self.pins.get(offer.server, offer.name)
        known = self.pins.is_known(offer.server)
        state = state_of(seen, policy, tool, findings, accepted, known)
        if accepted is None and state is State.ACCEPTED and seen.digest:
            self._accept_at_sight(offer, seen, policy)
        needs = seen.needs_of(permit.declared)
        missing = permit.missing(needs)
        trust = trust_in(policy.trust, permit.trust_level)
        risk = effective_risk(policy, tool, trust, seen.label, seen.hints, needs)
        enforced, advised = _validators(seen, policy, tool)
        always = is_confirmed_always(policy, tool, seen.label)
        standing = ToolStanding(
            state,
            refusal_for(state, offer.server, offer.name, missing, findings),
            must_be_confirmed(policy, tool, risk),
            always,
            policy.cost_of(tool, risk),
            risk,
            needs,
            enforced,
            advised,
            _rules(seen, tool, enforced, advised),
            findings,
            seen.digest,
            tool.approvals,
            why_never(risk, seen, needs, always_asked=always or tool.approvals > 1),
        )
        if offer.name in self._examined.get(offer.server, ()):
            # Of what is not listed there could be any number.
            key = (offer.server, offer.name)
            self._held[key] = _Held(offer.definition, permit.generation, standing)
        return standing

    def _accept_at_sight(self, offer: Offer, seen: Examined, policy: ServerPolicy) -> None:
        if policy.definitions is Definitions.FIRST_SEEN:
            now, written = self._clock(), seen.written()
            pin = Pin(offer.server, offer.name, seen.digest, written, GATEWAY, now)
            self.pins.accept(pin)
            self._at_sight.append(pin)

    def _tell(self, server: str, offers: Iterable[Offer]) -> None:
        """Have it written down what was accepted at sight, and what is other than was accepted."""
        accepted, self._at_sight = self._at_sight, []
        if self.audit is None:
            return
        for name in dict.fromkeys(pin.server for pin in accepted):
            mine = (pin for pin in accepted if pin.server == name)
            self.audit.accepted(name, mine, GATEWAY)
        changed: dict[str, str] = {}
        for offer in offers:
            standing, place = self.standing(offer), (server, offer.name)
            if standing.state is not State.CHANGED:
                self._told.pop(place, None)
            elif self._told.get(place) != standing.digest:
                self._told[place] = changed[offer.name] = standing.digest
        if changed:
            self.audit.changed(server, changed)

    def _findings(self, offer: Offer, seen: Examined, policy: ServerPolicy) -> tuple[Finding, ...]:
        found = list(seen.findings)
        rival = self._names.rival(offer.server, offer.name)
        if rival is not None:
            what = f"{rival[1]!r:.100} of server {rival[0]!r:.70}, which was there before"
            found.append(Finding(Look.LOOKALIKE, "/name", what))
        if policy.suspicious is Suspicious.STRICT:
            found += self.shadows(offer)
        return tuple(found)

    def shadows(self, offer: Offer) -> list[Finding]:
        """Where a tool is called as another server's is, or speaks of one. (attack 3)"""
        others = [
            each.server
            for each in self._catalog.holders(Kind.TOOL, offer.name)
            if each.server != offer.server
        ]
        found = [
            Finding(Look.SHADOW, "/name", f"server {other!r:.70} has a tool of that name")
            for other in others[:3]
        ]
        for word in self._examine(offer).words():
            named = self._catalog.named(Kind.TOOL, word)
            held = [named] if named is not None else self._catalog.holders(Kind.TOOL, word)
            strangers = [each for each in held if each.server != offer.server]
            if strangers and len(found) < 10:
                whose = f"{word!r:.100}, a tool of server {strangers[0].server!r:.70}"
                found.append(Finding(Look.MENTION, "/description", whose))
        return found


def _validators(
    seen: Examined, policy: ServerPolicy, tool: ToolPolicy
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Which must agree, and which are only asked: nobody named these. (MGP §8.2)"""
    declared = () if seen.label is None else seen.label.validators
    named = tuple(dict.fromkeys((*tool.validators, *declared)))
    if named or policy.fallback is Fallback.OFF:
        return named, ()
    return (seen.suggested, ()) if policy.fallback is Fallback.ON else ((), seen.suggested)


def _rules(
    seen: Examined, tool: ToolPolicy, validators: tuple[str, ...], advised: tuple[str, ...]
) -> Rules:
    guessed = {each.argument: Meaning(each.meaning) for each in seen.suggestions}
    named = {name: Meaning(meaning) for name, meaning in tool.arguments.items()}
    if not (validators or advised or named):
        return UNRULED
    return Rules(validators=validators, advised=advised, arguments={**guessed, **named})
