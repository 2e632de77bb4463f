"""Asks at /api/asks: those that somebody may see, and the word of whoever may answer them.

Reception lets everybody in here who is known; the inbox decides about each ask. "Remember" makes a
grant, for whoever may make one without any ask. (D-98, D-102)
"""

from collections.abc import Mapping
from typing import Final, cast

from comity.kernel.administration import Administration
from comity.kernel.inbox import Inbox
from comity.rules.claims import refuse_claims, without_claims
from comity.surfaces.asked import Asked, Room, View
from comity.surfaces.grants_api import grant_view
from comity.surfaces.members import refuse_strangers, text
from comity.wire.asks import Ask, Kind, State, Verdict
from comity.wire.errors import INVALID_PARAMS, NOTHING_HERE, MalformedMessage
from comity.wire.grants import ADMIN_WRITE, CALL, Effect, Grant
from comity.wire.parties import Actor

OPEN: Final = (State.PENDING, State.DEFERRED)
LONGEST_REASON: Final = 2000
LONGEST_NAME: Final = 1000
PAGE: Final = 250
_ANSWER: Final = frozenset({"verdict", "reason", "content", "remember"})


class AsksApi:
    """The inbox for programs, and for the commands."""

    def __init__(self, inbox: Inbox, administration: Administration) -> None:
        self._inbox = inbox
        self._approvals = inbox.approvals
        self._administration = administration

    @property
    def rooms(self) -> dict[str, Room]:
        return {"asks": self.asks}

    async def asks(self, asked: Asked) -> View:
        refuse_claims(asked.body, asked.actor.party)
        match asked.method, asked.place:
            case "GET", ():
                return await self._page(asked)
            case "GET", (id,):
                return await self._inbox.view(asked.actor, await self._inbox.find(asked.actor, id))
            case "POST", (id, "answer"):
                return await self._answer(asked.actor, id, without_claims(asked.body))
            case "POST", (id, "link"):
                return await self._link(asked.actor, id, asked.body)
            case _:
                raise MalformedMessage("there is no such address under /api/asks", NOTHING_HERE)

    async def _page(self, asked: Asked) -> View:
        """One page; it may be empty and have a next one, since others may be there."""
        states = _states(asked.query.get("state", ""))
        found, following = await self._approvals.page(
            asked.actor, states, asked.query.get("cursor", ""), PAGE
        )
        page: dict[str, object] = {"asks": await self._inbox.views(asked.actor, found)}
        return {**page, "next": following} if following else page

    async def _answer(self, actor: Actor, id: str, body: Mapping[str, object]) -> View:
        refuse_strangers(body, _ANSWER)
        try:
            verdict = Verdict(text(body, "verdict", LONGEST_NAME))
        except ValueError:
            known = ", ".join(Verdict)
            raise MalformedMessage(f"verdict must be one of: {known}", INVALID_PARAMS) from None
        reason = text(body, "reason", LONGEST_REASON, "")
        content = body.get("content", {})
        if not isinstance(content, dict):
            raise MalformedMessage("content must be an object", INVALID_PARAMS)
        wanted = None
        if _truth(body, "remember"):
            wanted = self._remembered(actor, await self._approvals.get(actor, id), verdict)
        answered = await self._approvals.answer(
            actor, id, verdict, reason, cast("dict[str, object]", content)
        )
        view = await self._inbox.view(actor, answered)
        if wanted is None or answered.state is not State.ACCEPTED:
            return {**view, "remembered": None}
        return {**view, "remembered": grant_view(await self._administration.put(actor, wanted))}

    def _remembered(self, actor: Actor, ask: Ask, verdict: Verdict) -> Grant:
        """What "always" would grant. Whoever may not grant it is told so before it answers."""
        # What has options is a server's own question amid a call, and no call.
        if verdict is not Verdict.ACCEPT or ask.kind is not Kind.CONFIRM or ask.options:
            raise MalformedMessage("only a call that is approved is remembered", INVALID_PARAMS)
        target = f"{ask.server}/{ask.tool}"
        self._administration.demand(actor, ADMIN_WRITE, target)
        why = f"always, said {actor.party} when approving ask {ask.id}"
        return Grant(ask.asker, CALL, target, Effect.ALLOW, justification=why)

    async def _link(self, actor: Actor, id: str, body: Mapping[str, object]) -> View:
        refuse_strangers(body, {"party"})
        self._administration.demand(actor, ADMIN_WRITE, "*")
        party = text(body, "party", LONGEST_NAME, actor.party)
        ask = await self._inbox.find(actor, id)
        url = await self._inbox.link(actor, ask, party)
        return {"id": ask.id, "party": party, "url": url, "expires_at": ask.expires_at}


def _states(said: str) -> tuple[State, ...]:
    """By their names, with commas between; those that are open, or `all`."""
    if said == "all":
        return ()
    try:
        return tuple(State(each.strip()) for each in said.split(",")) if said else OPEN
    except ValueError:
        known = ", ".join(State)
        raise MalformedMessage(f"state must be all, or some of: {known}", INVALID_PARAMS) from None


def _truth(body: Mapping[str, object], name: str) -> bool:
    found = body.get(name, False)
    if not isinstance(found, bool):
        raise MalformedMessage(f"{name} must be true or false", INVALID_PARAMS)
    return found
