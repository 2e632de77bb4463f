"""Tools that somebody was granted and cannot call yet, since their servers lack a permission.

No list shows them and no search finds them. Whoever asks for what they do is told that they wait,
and for which ask. (MGP §16.6, §3)
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from comity.kernel.catalog import Catalog, Kind, Offer
from comity.kernel.grants import Judge
from comity.kernel.sight import Sight
from comity.kernel.toolcare import ToolCare
from comity.rules.search_words import words
from comity.rules.tool_facts import facts_of
from comity.wire.errors import PERMISSION_DENIED
from comity.wire.mcp import CALL_TOOL
from comity.wire.parties import Actor

MOST_LOOKED_AT: Final = 2000
"""So many definitions take some ten milliseconds."""


class Questions(Protocol):
    """Who knows what operators are asked of servers' permissions."""

    def open_ask(self, server: str, permissions: Iterable[str]) -> str:
        """The id of an ask that is open for one of these; nothing where there is none."""
        ...


@dataclass(frozen=True, slots=True)
class Waiting:
    """A tool that waits, why, and for which ask."""

    offer: Offer
    because: str
    ask: str = ""


class Withheld:
    """Finds, among the tools that wait, those that do what is wanted."""

    def __init__(
        self,
        catalog: Catalog,
        judge: Judge,
        care: ToolCare,
        questions: Callable[[], Questions | None],
        servers: Callable[[], Iterable[str]],
    ) -> None:
        self._catalog = catalog
        self._judge = judge
        self._care = care
        self._questions = questions
        self._servers = servers

    def find(self, actor: Actor, capability: str) -> Waiting | None:
        """The first tool in whose own words everything is found that is wanted."""
        wanted = set(words(capability))
        if not wanted:
            return None
        for offer in self._of(actor):
            facts = facts_of(offer.name, offer.definition)
            said = {*words(offer.name), *words(facts.title), *words(facts.description)}
            if wanted <= said:
                return self._waiting(offer)
        return None

    def _of(self, actor: Actor) -> Iterator[Offer]:
        sight, left = Sight(self._judge, actor, CALL_TOOL), MOST_LOOKED_AT
        for server in self._servers():
            permit = self._care.permits.of(server)
            view = sight.over(server) if permit.missing(permit.needs) else None
            for offer in () if view is None else self._catalog.seen(server, Kind.TOOL, view):
                refusal = self._care.standing(offer).refusal
                if refusal is not None and refusal.fault is PERMISSION_DENIED:
                    yield offer
                left -= 1
                if not left:
                    return

    def _waiting(self, offer: Offer) -> Waiting:
        standing, questions = self._care.standing(offer), self._questions()
        missing = self._care.permits.of(offer.server).missing(standing.needs)
        ask = "" if questions is None else questions.open_ask(offer.server, missing)
        because = "" if standing.refusal is None else standing.refusal.because
        return Waiting(offer, because, ask)
