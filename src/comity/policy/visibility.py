"""Which servers and catalog entries an actor sees."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import Final

from comity.mcp.actors import Actor
from comity.policy.grants import (
    ANY,
    STRICTNESS_BY_EFFECT,
    DefaultPolicy,
    Effect,
    Grant,
    GrantIndex,
    GrantSet,
    is_in_force,
    is_pattern_match,
    split_target,
    verb_covers,
)

ENTRY_VERBS: Final = ("tools/call", "prompts/get", "resources/read")
"""The verbs that make a server visible: an actor sees a server if it may use one of them."""


@dataclass(frozen=True, slots=True)
class ServerVisibility:
    """The entries of a server that an actor sees.

    `is_visible_by_default` tells whether it sees the entries that no grant names. `exceptions`
    holds the names that need a decision each. With `has_patterns`, every name needs one.
    `may_become_visible` then tells whether the actor may see any.
    """

    is_visible_by_default: bool
    exceptions: tuple[Collection[str], ...] = ()
    has_patterns: bool = False
    may_become_visible: bool = False

    @property
    def is_uniform(self) -> bool:
        """Whether the actor sees either all entries or none."""
        return not self.exceptions and not self.has_patterns


NOTHING_VISIBLE: Final = ServerVisibility(False)
ALL_VISIBLE: Final = ServerVisibility(True)


def server_visibility(
    access: GrantSet, actor: Actor, verb: str, server: str, now: datetime
) -> ServerVisibility:
    """Return which entries of a server the actor sees for a verb."""
    named: list[Collection[str]] = []
    patterned = False
    for forbid in access.guardrails.applying_to_server(actor, verb, server):
        name = split_target(forbid.target)[1]
        if name == ANY:
            return NOTHING_VISIBLE
        patterned = patterned or _collect_name(name, named)
    bounded = actor.permissions is not None
    for name in _names_in_bounds(actor, verb, server):
        if name == ANY:
            bounded = False
        else:
            patterned = patterned or _collect_name(name, named)
    indexes = access.indexes_of(actor)
    for entries in indexes:
        patterned = _collect_exceptions(entries, verb, server, now, named) or patterned
    general = _effect_on_all(indexes, verb, server, now)
    effect = access.default_effect(actor, verb, server) if general is None else general
    is_open = effect is not Effect.DENY
    hopeful = patterned and (
        is_open or any(_has_open_pattern(each, verb, server, now) for each in indexes)
    )
    return ServerVisibility(is_open and not bounded, tuple(named), patterned, hopeful)


def can_know_server(access: GrantSet, actor: Actor, server: str, now: datetime) -> bool:
    """Whether any entry of a server may be open to the actor, so that it may see the server."""
    return any(_may_see(access, actor, verb, server, now) for verb in ENTRY_VERBS)


def visible_servers(access: GrantSet, actor: Actor) -> Collection[str] | None:
    """The only servers of which the actor may see anything, or None if any server qualifies."""
    decided = access.static_rules
    entries = access.indexes_of(actor)
    if decided.default is DefaultPolicy.ALLOW and actor.party:
        return None
    if any(each.grants_on_all or each.grants_by_name or each.pattern_grants for each in entries):
        return None
    found = {
        server
        for each in entries
        for server in chain(each.grants_by_entry, each.grants_by_server, each.grants_on_some)
    }
    found.update(
        server for server, policy in decided.policies.items() if policy is DefaultPolicy.ALLOW
    )
    return found


def visibility_basis(access: GrantSet, actor: Actor) -> tuple[object, ...]:
    """The objects that decide what the actor sees. While they are identical, so is the result."""
    return *access.indexes_of(actor), access.static_rules, access.guardrails


def visibility_basis_and_expiry(
    access: GrantSet, actor: Actor, now: datetime
) -> tuple[tuple[object, ...], datetime | None]:
    """Return the visibility basis, and the time when its first grant expires."""
    ends = (
        grant.expires_at
        for entries in access.indexes_of(actor)
        for grant in entries.grants
        if grant.expires_at is not None and grant.expires_at > now
    )
    return visibility_basis(access, actor), min(ends, default=None)


def _may_see(access: GrantSet, actor: Actor, verb: str, server: str, now: datetime) -> bool:
    found = server_visibility(access, actor, verb, server, now)
    if found.is_uniform or found.is_visible_by_default:
        return found.is_visible_by_default
    if found.may_become_visible:
        return True
    return any(
        access.authorize(actor, verb, server, name, now).effect is not Effect.DENY
        for names in found.exceptions
        for name in names
    )


def _collect_name(name: str, named: list[Collection[str]]) -> bool:
    """Collect an exact name, or return True for a pattern."""
    if ANY in name:
        return True
    named.append((name,))
    return False


def _names_in_bounds(actor: Actor, verb: str, server: str) -> Iterator[str]:
    """The names of a server that the bounds of a credential cover."""
    for allowed, target in actor.permissions or ():
        of_server, name = split_target(target)
        if verb_covers(allowed, verb) and is_pattern_match(of_server, server):
            yield name


def _collect_exceptions(
    entries: GrantIndex, verb: str, server: str, now: datetime, named: list[Collection[str]]
) -> bool:
    """Collect the exact names that grants cover.

    Returns whether a grant covers names by a pattern.
    """
    if server in entries.grants_by_entry:
        named.append(entries.grants_by_entry[server])
    if entries.grants_by_name:
        named.append(entries.grants_by_name)
    patterned = any(
        is_in_force(grant, verb, now) for grant in entries.grants_on_some.get(server, ())
    )
    for grant in entries.pattern_grants:
        of_server, name = split_target(grant.target)
        if name != ANY and is_pattern_match(of_server, server) and is_in_force(grant, verb, now):
            patterned = _collect_name(name, named) or patterned
    return patterned


def _has_open_pattern(entries: GrantIndex, verb: str, server: str, now: datetime) -> bool:
    """Whether a grant with a pattern may let its subject use some entry."""
    fitting = (
        each
        for each in entries.pattern_grants
        if is_pattern_match(split_target(each.target)[0], server)
    )
    return any(
        grant.effect is not Effect.DENY and is_in_force(grant, verb, now)
        for grant in chain(entries.grants_on_some.get(server, ()), fitting)
    )


def _effect_on_all(
    indexes: Iterable[GrantIndex], verb: str, server: str, now: datetime
) -> Effect | None:
    """The effect for a name that no grant covers by itself. None if no grant covers all names."""
    indexes = tuple(indexes)
    on_server = [grant for each in indexes for grant in each.grants_by_server.get(server, ())]
    anywhere = [
        grant
        for each in indexes
        for grant in chain(each.grants_on_all, _server_wide_grants(each, server))
    ]
    for grants in (on_server, anywhere):
        effects = [grant.effect for grant in grants if is_in_force(grant, verb, now)]
        if effects:
            return max(effects, key=STRICTNESS_BY_EFFECT.__getitem__)
    return None


def _server_wide_grants(entries: GrantIndex, server: str) -> Iterator[Grant]:
    """The grants with a pattern for servers that cover all names of this server."""
    for grant in entries.pattern_grants:
        of_server, name = split_target(grant.target)
        if name == ANY and is_pattern_match(of_server, server):
            yield grant
