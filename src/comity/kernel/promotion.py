"""Who may send what into topics, changed by operators: in force at once, and told. (MCPx §11.3)

Rule 1: a capability is a grant; adding one writes it, removing one takes it back, and where another
        grant would still give it, denies it.
Rule 2: whoever changes it is an operator, and is named in the grant and in the journal.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from comity.kernel.administration import Administration
from comity.kernel.audit_recorder import kind_of
from comity.kernel.topics import Topics
from comity.rules.capabilities import is_capability, matches
from comity.rules.entitlement import SEND
from comity.rules.topics import is_topic
from comity.wire.errors import INVALID_PARAMS, MalformedMessage
from comity.wire.grants import EVERYTHING, Effect, Grant
from comity.wire.parties import Actor

MOST_AT_ONCE: Final = 64
_NOWHERE: Final = "nowhere"


@dataclass(frozen=True, slots=True)
class Changed:
    """What somebody could send before, and can now."""

    party: str
    before: tuple[str, ...]
    now: tuple[str, ...]


class Promotion:
    def __init__(self, administration: Administration, topics: Topics) -> None:
        self._administration = administration
        self._topics = topics

    async def change(
        self, actor: Actor, party: str, topic: str, add: Iterable[str], remove: Iterable[str]
    ) -> Changed:
        """Raises MalformedMessage where this actor may not, or something is no capability."""
        adding, removing = _checked(add), _checked(remove)
        if topic != EVERYTHING and not is_topic(topic):
            raise MalformedMessage("topic must be the name of a topic, or *", INVALID_PARAMS)
        before = self.of(party, topic)
        for each in adding:
            grant = Grant(party, SEND, f"{topic}/{each}", Effect.ALLOW)
            await self._administration.put(actor, grant)
        for each in removing:
            await self._administration.revoke(actor, party, SEND, f"{topic}/{each}")
            if any(matches(has, each) or has == each for has in self.of(party, topic)):
                denial = Grant(party, SEND, f"{topic}/{each}", Effect.DENY)
                await self._administration.put(actor, denial)
        self._topics.regranted(party)
        return Changed(party, before, self.of(party, topic))

    def of(self, party: str, topic: str) -> tuple[str, ...]:
        """What somebody may send there; or where it is now, where no topic is named."""
        somebody, named = Actor(party, kind_of(party)), topic
        for name, seat in self._topics.seats_of(party):
            if topic in (name, EVERYTHING):
                somebody, named = seat.actor, name
        named = _NOWHERE if named == EVERYTHING else named
        return self._topics.entitled(named, somebody).may.listed


def _checked(named: Iterable[str]) -> list[str]:
    found = list(dict.fromkeys(named))
    if len(found) > MOST_AT_ONCE:
        raise MalformedMessage(f"at most {MOST_AT_ONCE} capabilities at once", INVALID_PARAMS)
    for each in found:
        if not is_capability(each):
            raise MalformedMessage(
                f"{each!r:.80} is no capability, as mcp/proposal:* or chat", INVALID_PARAMS
            )
    return found
