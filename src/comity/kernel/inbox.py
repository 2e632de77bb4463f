"""The inbox as its doors see it: asks with what is known of others like them, and links to them.

Rule 1: nobody is told of an ask that it may not see; that there is one is told no more than that.
Rule 2: a link answers as its party, so only who administers everything makes one for somebody, and
        that is written down. It holds no longer than its ask.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final

from comity.kernel.approvals import NOT_THERE, Approvals
from comity.kernel.ask_ids import LEAST_OF_AN_ID, WHOLE_ID, ask_beginning
from comity.kernel.journal import Journal
from comity.rules import ask_words
from comity.rules.ask_links import PATH, Link, Links
from comity.rules.ask_words import Seen
from comity.rules.asks import new_ask_id
from comity.wire.asks import Ask, State
from comity.wire.audit import Event, Type
from comity.wire.errors import ACCESS_DENIED, INVALID_PARAMS, MalformedMessage
from comity.wire.parties import LOCAL_OPERATOR, Actor, PartyKind

type Named = Callable[[str, str], Actor | None]
"""A party that is known and let in, as the holder of a key of its own where one is named."""

LOOKED_BACK: Final = timedelta(days=1)
_REMEMBERED: Final = timedelta(seconds=5)
_MOST_PAGES: Final = 20
_PAGE: Final = 250
_DECIDED: Final = (State.ACCEPTED, State.USED, State.DECLINED)


class Inbox:
    """What somebody who comes by any door is shown of the asks."""

    def __init__(
        self,
        approvals: Approvals,
        links: Links,
        named: Named = lambda _party, _key: None,
        journal: Journal | None = None,
    ) -> None:
        self.approvals = approvals
        self.links = links
        self.named = named
        self._journal = journal
        self._seen: Seen = {}
        self._looked: datetime | None = None

    async def find(self, actor: Actor, named: str) -> Ask:
        """One that somebody may see, by its id or by enough of it. Raises MalformedMessage."""
        named = named.lower()
        if len(named) >= WHOLE_ID:
            return await self.approvals.get(actor, named)
        if len(named) < LEAST_OF_AN_ID:
            raise MalformedMessage(
                f"say at least {LEAST_OF_AN_ID} letters of an ask's id", INVALID_PARAMS
            )
        asks, may_see = self.approvals.asks, self.approvals.may_see
        found = await ask_beginning(asks, named, lambda ask: may_see(ask, actor))
        if found is None:
            raise MalformedMessage(NOT_THERE, INVALID_PARAMS)
        return found

    async def view(self, actor: Actor, ask: Ask) -> dict[str, object]:
        return (await self.views(actor, [ask]))[0]

    async def views(self, actor: Actor, asks: Iterable[Ask]) -> list[dict[str, object]]:
        """Asks for programs, the riskiest first, with whether this actor may answer each."""
        found = ask_words.ordered(asks)
        if any(ask.is_open for ask in found):
            await self.seen()
        return [self._view(actor, ask) for ask in found]

    def _view(self, actor: Actor, ask: Ask) -> dict[str, object]:
        because = self.approvals.why_not(ask, actor) if ask.is_open else None
        return {
            **ask_words.fields(ask),
            "likeness": (ask_words.likeness(ask, self._seen) if ask.is_open else "") or None,
            "may_answer": ask.is_open and because is None,
            "why_not": because,
            "approvers": self.approvals.approvers(ask, actor) if ask.is_open else None,
        }

    async def likeness(self, ask: Ask) -> str:
        return ask_words.likeness(ask, await self.seen())

    async def seen(self) -> Seen:
        """What was decided in the last day; looked up anew every few seconds at most."""
        now = self.approvals.clock()
        if self._looked is None or now - self._looked > _REMEMBERED:
            self._looked = now
            self._seen = ask_words.seen(await self._decided(now))
        return self._seen

    async def _decided(self, now: datetime) -> Sequence[Ask]:
        found: list[Ask] = []
        after = new_ask_id(now - LOOKED_BACK, b"")
        for _ in range(_MOST_PAGES):
            page = await self.approvals.asks.page(_DECIDED, after, _PAGE)
            found += page
            if len(page) < _PAGE:
                break
            after = page[-1].id
        return found

    # Links.

    def url(self, ask: Ask, party: str = "") -> str:
        """Where an ask can be answered: by whoever shows a key, or by the party it is made for."""
        page = f"{self.approvals.options.public_url}{PATH}{ask.id}"
        if not party:
            return page
        # The operator of a gateway in local mode comes from its own machine, also by a link.
        credential = LOCAL_OPERATOR.credential if party == LOCAL_OPERATOR.party else ""
        return f"{page}?t={self.links.seal(Link(ask.id, party, ask.expires_at, credential))}"

    def why_no_link(self, ask: Ask, party: str) -> str | None:
        """Why nobody can have a link by which this party answers; None where somebody can."""
        actor = self.named(party, "")
        if actor is None:
            return f"{party} is not known here, or is kept out; see `comity parties`"
        if actor.kind is not PartyKind.PERSON:
            return f"{party} is no person, and only people answer asks"
        return self.approvals.why_not(ask, actor)

    async def link(self, by: Actor, ask: Ask, party: str) -> str:
        """A link by which this party answers; who made it is in the journal. Raises."""
        because = "it is not open any more" if not ask.is_open else self.why_no_link(ask, party)
        if because is not None:
            raise MalformedMessage(f"no link can be made: {because:.300}", ACCESS_DENIED)
        if self._journal is not None:
            said = {"what": "link to an ask", "ask": ask.id, "party": party}
            at = self.approvals.clock()
            event = Event(Type.KEY_ISSUED, by.party, at, by.kind, trace=ask.trace, details=said)
            await self._journal.write(event)
        return self.url(ask, party)
