"""What an actor sees of one server, found without looking at each of its offers.

Most servers are seen as a whole or not at all. Where entries name offers, only those have to be
judged; where they hold patterns, each offer has to be, and whoever lists them counts the work.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import Final

from comity.rules.access import STRICTNESS, Access, DefaultPolicy, is_in_force
from comity.rules.entries import Entries
from comity.rules.patterns import ANY, covers, parts, verb_covers
from comity.wire.grants import Effect, Grant
from comity.wire.parties import Actor

OFFERED: Final = ("tools/call", "prompts/get", "resources/read")
"""What makes a server one to know of: that something it offers can be used."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """`all_else` is whether it sees what nothing names; `named` are the names that are judged one
    by one; with `patterned` every name is, and `hopeful` is whether some may then be seen."""

    all_else: bool
    named: tuple[Collection[str], ...] = ()
    patterned: bool = False
    hopeful: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether everything is seen, or nothing."""
        return not self.named and not self.patterned


NOTHING: Final = Outlook(False)
ALL: Final = Outlook(True)


def outlook(access: Access, actor: Actor, verb: str, server: str, now: datetime) -> Outlook:
    """How far this actor sees what a server offers to that verb."""
    named: list[Collection[str]] = []
    patterned = False
    for forbid in access.guardrails.about(actor.party, verb, server):
        name = parts(forbid.target)[1]
        if name == ANY:
            return NOTHING
        patterned = patterned or _note(name, named)
    bounded = actor.permissions is not None
    for name in _bounds(actor, verb, server):
        if name == ANY:
            bounded = False
        else:
            patterned = patterned or _note(name, named)
    both = access.of_actor(actor)
    for entries in both:
        patterned = _exceptions(entries, verb, server, now, named) or patterned
    general = _general(both, verb, server, now)
    effect = access.otherwise(actor, verb, server) if general is None else general
    is_open = effect is not Effect.DENY
    hopeful = patterned and (is_open or any(_opens_some(each, verb, server, now) for each in both))
    return Outlook(is_open and not bounded, tuple(named), patterned, hopeful)


def knows(access: Access, actor: Actor, server: str, now: datetime) -> bool:
    """Whether anything of a server may be open to this actor, so that it may know of it."""
    return any(_may_see(access, actor, verb, server, now) for verb in OFFERED)


def servers_in_sight(access: Access, actor: Actor) -> Collection[str] | None:
    """The only servers of which this actor may see anything; None where that could be any."""
    decided = access.decided
    entries = access.of_actor(actor)
    if decided.default is DefaultPolicy.OPT_OUT and actor.party:
        return None
    if any(each.everything or each.names or each.patterns for each in entries):
        return None
    found = {server for each in entries for server in chain(each.offers, each.servers, each.some)}
    found.update(
        server for server, policy in decided.policies.items() if policy is DefaultPolicy.OPT_OUT
    )
    return found


def basis(access: Access, actor: Actor) -> tuple[object, ...]:
    """All that is judged by for this actor: while each of them is the same, so is what it sees."""
    return *access.of_actor(actor), access.decided, access.guardrails


def ground(
    access: Access, actor: Actor, now: datetime
) -> tuple[tuple[object, ...], datetime | None]:
    """The same, and when the first of it ends by itself."""
    ends = (
        grant.expires_at
        for entries in access.of_actor(actor)
        for grant in entries.grants
        if grant.expires_at is not None and grant.expires_at > now
    )
    return basis(access, actor), min(ends, default=None)


def _may_see(access: Access, actor: Actor, verb: str, server: str, now: datetime) -> bool:
    found = outlook(access, actor, verb, server, now)
    if found.is_plain or found.all_else:
        return found.all_else
    if found.hopeful:
        return True
    return any(
        access.judge(actor, verb, server, name, now).effect is not Effect.DENY
        for names in found.named
        for name in names
    )


def _note(name: str, named: list[Collection[str]]) -> bool:
    """Keep a name that is spelt out; whether it is a pattern instead."""
    if ANY in name:
        return True
    named.append((name,))
    return False


def _bounds(actor: Actor, verb: str, server: str) -> Iterator[str]:
    """The names of a server that a credential's bounds are about."""
    for allowed, target in actor.permissions or ():
        of_server, name = parts(target)
        if verb_covers(allowed, verb) and covers(of_server, server):
            yield name


def _exceptions(
    entries: Entries, verb: str, server: str, now: datetime, named: list[Collection[str]]
) -> bool:
    """Gather the names that entries speak of by themselves; whether some do by a pattern."""
    if server in entries.offers:
        named.append(entries.offers[server])
    if entries.names:
        named.append(entries.names)
    patterned = any(is_in_force(grant, verb, now) for grant in entries.some.get(server, ()))
    for grant in entries.patterns:
        of_server, name = parts(grant.target)
        if name != ANY and covers(of_server, server) and is_in_force(grant, verb, now):
            patterned = _note(name, named) or patterned
    return patterned


def _opens_some(entries: Entries, verb: str, server: str, now: datetime) -> bool:
    """Whether there is an entry with a pattern that may let its subject use something."""
    fitting = (each for each in entries.patterns if covers(parts(each.target)[0], server))
    return any(
        grant.effect is not Effect.DENY and is_in_force(grant, verb, now)
        for grant in chain(entries.some.get(server, ()), fitting)
    )


def _general(both: Iterable[Entries], verb: str, server: str, now: datetime) -> Effect | None:
    """What is so for a name that no entry speaks of; None where no entry speaks of all names."""
    both = tuple(both)
    on_server = [grant for each in both for grant in each.servers.get(server, ())]
    anywhere = [grant for each in both for grant in chain(each.everything, _wide(each, server))]
    for grants in (on_server, anywhere):
        effects = [grant.effect for grant in grants if is_in_force(grant, verb, now)]
        if effects:
            return max(effects, key=STRICTNESS.__getitem__)
    return None


def _wide(entries: Entries, server: str) -> Iterator[Grant]:
    """Those with a pattern for servers that are about all names of this one."""
    for grant in entries.patterns:
        of_server, name = parts(grant.target)
        if name == ANY and covers(of_server, server):
            yield grant
