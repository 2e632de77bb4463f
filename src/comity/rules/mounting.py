"""Which servers are members of a topic: those that an operator has put there. (D-101)

Rule 1: nothing is in a topic by default, nor by a grant of everything: what is mounted was named,
        in the file or by a grant of `topic/join` to `server:ID` on `TOPIC/*`.
Rule 2: denying comes first, over the file as well; so does a guardrail.
"""

from datetime import datetime
from typing import Final, NamedTuple

from comity.rules.access import Access, is_in_force
from comity.rules.patterns import ANY, target_covers
from comity.wire.grants import Effect, Grant
from comity.wire.parties import Actor, PartyKind

JOIN: Final = "topic/join"
_PREFIX: Final = f"{PartyKind.SERVER}:"


class Mounted(NamedTuple):
    """Whether a server is in a topic, and until when that is so without anybody's doing."""

    is_so: bool
    until: datetime | None = None


def party_of(server: str) -> str:
    """The member that a server is in a topic."""
    return _PREFIX + server


def mounted(access: Access, server: str, topic: str, now: datetime, *, is_written: bool) -> Mounted:
    """`is_written` is whether the operator's file puts it there."""
    party = party_of(server)
    if access.guardrails.over(party, JOIN, topic, server) is not None:
        return Mounted(is_so=False)
    found = [
        grant
        for entries in access.of_actor(Actor(party, PartyKind.SERVER))
        for grant in entries.grants
        if _is_about(grant, topic, server) and is_in_force(grant, JOIN, now)
    ]
    until = min((grant.expires_at for grant in found if grant.expires_at), default=None)
    if any(grant.effect is not Effect.ALLOW for grant in found):
        return Mounted(False, until)
    is_named = any(grant.subject == party and grant.verb != ANY for grant in found)
    return Mounted(is_written or is_named, until)


def _is_about(grant: Grant, topic: str, server: str) -> bool:
    return grant.where is None and target_covers(grant.target, topic, server)
