"""What a party may send into a topic, from its grants. (MCPx §4.1, §5.1, §7.1; design §1)

Rule 1: a grant of `topic/send` on `TOPIC/CAPABILITY` allows or denies that capability; denying
        comes first. One that would ask allows nothing: whoever has it proposes instead.
Rule 2: a guardrail denies, and a bounded credential allows no more than its bounds; one that is
        bound to other things does not let its holder in.
Rule 3: in a public topic everybody has what is usual there, and what it was granted beside that;
        elsewhere who was granted nothing has nothing, and may not come in.
Rule 4: nor may who was denied everything there, whatever else it was granted.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from comity.rules.access import Access
from comity.rules.capabilities import FULL, Capabilities, is_capability, matches
from comity.rules.patterns import ANY, covers, parts, verb_covers
from comity.rules.topics import Access as Entrance
from comity.wire.grants import Effect, Grant
from comity.wire.parties import Actor

SEND: Final = "topic/send"


class Entitled(NamedTuple):
    """What a party may send, whether it may be here at all, and until when both are so."""

    may: Capabilities
    is_admitted: bool
    until: datetime | None = None


def entitled(
    access: Access,
    actor: Actor,
    topic: str,
    now: datetime,
    terms: tuple[Entrance, Sequence[str]],
) -> Entitled:
    """`terms` are who may join this topic, and what somebody may send who was granted nothing."""
    entrance, usual = terms
    found = [
        grant
        for entries in access.of_actor(actor)
        for grant in entries.grants
        if _is_about(grant, topic) and (grant.expires_at is None or grant.expires_at > now)
    ]
    ends = min((grant.expires_at for grant in found if grant.expires_at), default=None)
    granted = [grant.target for grant in found if grant.effect is Effect.ALLOW]
    denied = [grant.target for grant in found if grant.effect is Effect.DENY]
    denied += [each.target for each in access.guardrails.about(actor.party, SEND, topic)]
    # Of several members whom one person plays alone, each is at home in every topic.
    is_open = entrance is Entrance.PUBLIC or actor.is_local
    allowed = [*(usual if is_open else ()), *_named(granted)]
    is_kept_out = any(parts(target)[1] == ANY for target in denied)
    if actor.permissions is not None:
        bounds = _bounds(actor.permissions, topic)
        allowed = _within(allowed, bounds)
        is_kept_out = is_kept_out or not bounds
    is_admitted = (is_open or bool(granted)) and not is_kept_out
    may = Capabilities(allowed if is_admitted else (), _named(denied))
    return Entitled(may, is_admitted, ends)


def _is_about(grant: Grant, topic: str) -> bool:
    return (
        grant.where is None
        and verb_covers(grant.verb, SEND)
        and covers(parts(grant.target)[0], topic)
    )


def _named(targets: Iterable[str]) -> list[str]:
    """The capabilities that targets name; what is open stands for all that members say."""
    found: list[str] = []
    for target in targets:
        name = parts(target)[1]
        found += FULL if name == ANY else (name,) if is_capability(name) else ()
    return found


def _bounds(permissions: Iterable[tuple[str, str]], topic: str) -> list[str]:
    """What a credential is bound to in a topic."""
    return _named(
        target
        for verb, target in permissions
        if verb_covers(verb, SEND) and covers(parts(target)[0], topic)
    )


def _within(allowed: Iterable[str], bounds: Sequence[str]) -> list[str]:
    """What is both allowed and within bounds: of two, where one has the other in it, that other."""
    return [
        narrower
        for each in allowed
        for bound in bounds
        if (narrower := _narrower(each, bound)) is not None
    ]


def _narrower(one: str, other: str) -> str | None:
    if one == other or matches(other, one):
        return one
    return other if matches(one, other) else None
