"""Why somebody may do something, or may not: what decided, what was overridden, and in words."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from comity.rules.access import CREDENTIAL, GUARDRAIL, Access, Judgement, is_in_force
from comity.rules.patterns import Level, level_of, target_covers, verb_covers
from comity.wire.grants import EVERYBODY, Effect, Grant
from comity.wire.parties import Actor


class Part(StrEnum):
    """What an entry has to do with the answer."""

    DECIDES = "decides"
    LESS_STRICT = "less strict"
    LESS_SPECIFIC = "less specific"
    EXPIRED = "expired"
    OVERRIDDEN = "overridden"
    STANDING = "standing answer"


@dataclass(frozen=True, slots=True)
class Considered:
    """One entry that is about what was asked, and what came of it."""

    grant: Grant
    level: Level
    part: Part


@dataclass(frozen=True, slots=True)
class Explanation:
    """The judgement, every entry that was considered, and a sentence that a person understands."""

    judgement: Judgement
    considered: tuple[Considered, ...]
    sentence: str


def explain(
    access: Access, actor: Actor, verb: str, place: tuple[str, str], now: datetime
) -> Explanation:
    """What this actor may do with the offer at that place, and why."""
    server, name = place
    judged = access.judge(actor, verb, server, name, now)
    entries = (
        grant
        for subject in dict.fromkeys((actor.party, EVERYBODY) if actor.party else ())
        for grant in access.entries(subject).grants
        if verb_covers(grant.verb, verb) and target_covers(grant.target, server, name)
    )
    considered = sorted(
        (Considered(grant, level_of(grant.target), _part(grant, judged, now)) for grant in entries),
        key=lambda each: (-each.level, [*Part].index(each.part)),
    )
    said = "".join(_sentence(access, actor, verb, server, name, judged))
    return Explanation(judged, tuple(considered), said)


def _part(grant: Grant, judged: Judgement, now: datetime) -> Part:
    if not is_in_force(grant, grant.verb, now):
        return Part.EXPIRED
    if grant.where is not None:
        return Part.STANDING
    if judged.grant is None:
        return Part.OVERRIDDEN
    if grant is judged.grant:
        return Part.DECIDES
    return Part.LESS_STRICT if level_of(grant.target) is judged.level else Part.LESS_SPECIFIC


_MAY = {Effect.ALLOW: "may", Effect.ASK: "may, once a person has said yes,", Effect.DENY: "may not"}
_ABOUT = {
    Level.OFFER: "this very offer",
    Level.SERVER: "its server",
    Level.EVERYTHING: "everything",
}


def _sentence(
    access: Access, actor: Actor, verb: str, server: str, name: str, judged: Judgement
) -> Iterator[str]:
    who = actor.party or "whoever has shown no credentials"
    target = f"{server}/{name}" if server or name else "*"
    yield f"{who} {_MAY[judged.effect]} {_deed(verb)} {target}: "
    if judged.forbid is not None and judged.because == GUARDRAIL:
        yield f"a guardrail forbids {judged.forbid.verb} on {judged.forbid.target} to "
        yield f"{judged.forbid.subject}"
        yield f" ({judged.forbid.why})." if judged.forbid.why else ", and nothing overrides it."
    elif judged.because == CREDENTIAL:
        yield "the credential it came with is bounded, and this is outside of its bounds."
    elif judged.grant is not None and judged.level is not None:
        yield from _by_grant(judged.grant, judged.level)
    else:
        yield f"no entry is about it, and the default policy of {server or 'the gateway'} is "
        yield f"{access.policy_of(server)}."


def _by_grant(grant: Grant, level: Level) -> Iterator[str]:
    whom = "everybody" if grant.subject == EVERYBODY else grant.subject
    yield f"an entry about {_ABOUT[level]} ({grant.target}) says {grant.effect} for {whom}"
    if grant.granted_by:
        yield f", by {grant.granted_by}"
    if grant.expires_at is not None:
        yield f", until {grant.expires_at:%Y-%m-%d %H:%M} UTC"
    yield f" ({grant.justification})." if grant.justification else "."


def _deed(verb: str) -> str:
    return {"tools/call": "call", "prompts/get": "use", "resources/read": "read"}.get(
        verb, f"do {verb} on"
    )
