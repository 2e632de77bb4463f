"""Explanations of decisions: which grant decides about a call, also at the endpoints of views."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from comity.mcp.actors import Actor
from comity.policy.grants import (
    ANY_SUBJECT,
    CREDENTIAL_SOURCE,
    GUARDRAIL_SOURCE,
    VIEW_PREFIX,
    Decision,
    Effect,
    Grant,
    GrantSet,
    TargetSpecificity,
    is_in_force,
    level_of,
    target_covers,
    verb_covers,
)


class ViewEntry(NamedTuple):
    """A tool in a view, and its name there."""

    view: str
    name: str
    server: str
    tool: str


class EntryRole(StrEnum):
    """The part that a grant played in a decision."""

    DECIDES = "decides"
    LESS_STRICT = "less strict"
    LESS_SPECIFIC = "less specific"
    EXPIRED = "expired"
    OVERRIDDEN = "overridden"
    STANDING = "conditional"


@dataclass(frozen=True, slots=True)
class ConsideredEntry:
    """A grant that covers the explained call, and its part in the decision."""

    grant: Grant
    level: TargetSpecificity
    role: EntryRole


@dataclass(frozen=True, slots=True)
class DecisionExplanation:
    """A decision, every grant that was considered, and a sentence for people."""

    decision: Decision
    considered: tuple[ConsideredEntry, ...]
    sentence: str


@dataclass(frozen=True, slots=True)
class ViewExplanation:
    """The decision about a tool at the endpoint of a view, with a sentence for people."""

    entry: ViewEntry
    decision: Decision
    sentence: str


def explain_in_view(
    access: GrantSet, actor: Actor, verb: str, entry: ViewEntry, now: datetime
) -> ViewExplanation:
    """Explain what the actor may do with a tool at the endpoint of a view."""
    place = entry.server, entry.tool
    judged = access.authorize_in_view(actor, verb, place, entry.view, now)
    said = "".join(_sentence(access, actor, verb, *place, judged))
    return ViewExplanation(entry, judged, said)


def explain_decision(
    access: GrantSet, actor: Actor, verb: str, entry: tuple[str, str], now: datetime
) -> DecisionExplanation:
    """Explain what the actor may do with the catalog entry at `entry`."""
    server, name = entry
    judged = access.authorize(actor, verb, server, name, now)
    entries = (
        grant
        for subject in dict.fromkeys((*actor.subjects, ANY_SUBJECT) if actor.party else ())
        for grant in access.index_of(subject).grants
        if verb_covers(grant.verb, verb) and target_covers(grant.target, server, name)
    )
    considered = sorted(
        (
            ConsideredEntry(grant, level_of(grant.target), _role_of(grant, judged, now))
            for grant in entries
        ),
        key=lambda each: (-each.level, [*EntryRole].index(each.role)),
    )
    said = "".join(_sentence(access, actor, verb, server, name, judged))
    return DecisionExplanation(judged, tuple(considered), said)


def _role_of(grant: Grant, decision: Decision, now: datetime) -> EntryRole:
    if not is_in_force(grant, grant.verb, now):
        return EntryRole.EXPIRED
    if grant.where is not None:
        return EntryRole.STANDING
    if decision.grant is None:
        return EntryRole.OVERRIDDEN
    if grant is decision.grant:
        return EntryRole.DECIDES
    return (
        EntryRole.LESS_STRICT
        if level_of(grant.target) is decision.level
        else EntryRole.LESS_SPECIFIC
    )


_TEXT_BY_EFFECT = {
    Effect.ALLOW: "may",
    Effect.ASK: "may, after approval,",
    Effect.DENY: "may not",
}
_TEXT_BY_LEVEL = {
    TargetSpecificity.OFFER: "this target",
    TargetSpecificity.SERVER: "its server",
    TargetSpecificity.EVERYTHING: "everything",
}


def _sentence(
    access: GrantSet, actor: Actor, verb: str, server: str, name: str, decision: Decision
) -> Iterator[str]:
    who = actor.party or "an unauthenticated client"
    target = f"{server}/{name}" if server or name else "*"
    yield f"{who} {_TEXT_BY_EFFECT[decision.effect]} {_describe_verb(verb)} {target}: "
    if decision.guardrail is not None and decision.reason == GUARDRAIL_SOURCE:
        yield f"a guardrail forbids {decision.guardrail.verb} on {decision.guardrail.target} to "
        yield f"{decision.guardrail.subject}"
        yield (
            f" ({decision.guardrail.why})."
            if decision.guardrail.why
            else ", and nothing overrides it."
        )
    elif decision.reason == CREDENTIAL_SOURCE:
        yield "the credential it came with is bounded, and this is outside of its bounds."
    elif decision.grant is not None and decision.level is not None:
        yield from _describe_grant(decision.grant, decision.level)
    else:
        yield f"no entry is about it, and the default policy of {server or 'the gateway'} is "
        yield f"{access.policy_of(server)}."


def _describe_grant(grant: Grant, level: TargetSpecificity) -> Iterator[str]:
    whom = "everybody" if grant.subject == ANY_SUBJECT else grant.subject
    what = "the view" if grant.target.startswith(VIEW_PREFIX) else _TEXT_BY_LEVEL[level]
    yield f"an entry about {what} ({grant.target}) says {grant.effect} for {whom}"
    if grant.granted_by:
        yield f", by {grant.granted_by}"
    if grant.expires_at is not None:
        yield f", until {grant.expires_at:%Y-%m-%d %H:%M} UTC"
    yield f" ({grant.justification})." if grant.justification else "."


def _describe_verb(verb: str) -> str:
    return {"tools/call": "call", "prompts/get": "use", "resources/read": "read"}.get(
        verb, f"do {verb} on"
    )
