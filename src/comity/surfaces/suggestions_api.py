"""Suggestions at /api/suggestions: what could be granted, on what evidence; and people's word."""

from typing import Final

from comity.kernel.precedents import Found, Precedents, Shown
from comity.rules.claims import refuse_claims, without_claims
from comity.rules.names import public_name
from comity.rules.precedents import Became, HeldBack
from comity.rules.rehearsing import NEVER_ASKED, Rehearsal
from comity.surfaces.asked import Asked, Room, View
from comity.surfaces.grants_api import grant_view
from comity.surfaces.members import refuse_strangers, text
from comity.wire.errors import INVALID_PARAMS, NOTHING_HERE, MalformedMessage

LONGEST_TEXT: Final = 1000
_MEMBERS: Final = frozenset({"id", "decision", "reason"})


class SuggestionsApi:
    """What people have decided often enough, and their word on it."""

    def __init__(self, precedents: Precedents) -> None:
        self._precedents = precedents

    @property
    def rooms(self) -> dict[str, Room]:
        return {"suggestions": self.suggestions}

    async def suggestions(self, asked: Asked) -> View:
        refuse_claims(asked.body, asked.actor.party)
        match asked.method, asked.place:
            case "GET", ():
                return _listed(await self._precedents.found(asked.actor))
            case "POST", ():
                return await self._decide(asked)
            case _:
                raise MalformedMessage(
                    "there is no such address under /api/suggestions", NOTHING_HERE
                )

    async def _decide(self, asked: Asked) -> View:
        said = without_claims(asked.body)
        refuse_strangers(said, _MEMBERS)
        id, reason = text(said, "id", LONGEST_TEXT), text(said, "reason", LONGEST_TEXT, "")
        match text(said, "decision", LONGEST_TEXT):
            case "accept":
                grant = await self._precedents.accept(asked.actor, id, reason)
                return {"id": id, "decision": "accept", "grant": grant_view(grant)}
            case "dismiss":
                dismissed = await self._precedents.dismiss(asked.actor, id, reason)
                again = 2 * dismissed.decisions
                return {"id": id, "decision": "dismiss", "suggested_again_at": again}
            case _:
                raise MalformedMessage("decision must be accept or dismiss", INVALID_PARAMS)


def _listed(found: Found) -> View:
    return {
        "suggestions": [_shown_view(each) for each in found.shown],
        "held_back": [_held_view(each) for each in found.held_back],
    }


def _shown_view(shown: Shown) -> View:
    one = shown.suggestion
    return {
        "id": one.id,
        "words": one.words,
        "subject": one.subject,
        "server": one.server,
        "tool": one.tool,
        "name": public_name(one.server, one.tool),
        "where": one.where,
        "evidence": {
            "approved": one.decisions,
            "people": one.people,
            "first": one.first,
            "last": one.last,
        },
        "dry_run": {**_rehearsal_view(shown.rehearsal), "journal_answered": shown.is_whole},
    }


def _rehearsal_view(found: Rehearsal) -> dict[str, object]:
    return {
        "sentence": found.sentence,
        "allowed": found.count(Became.APPROVED),
        "never_asked": found.count(*NEVER_ASKED),
        "unanswered": found.count(Became.UNANSWERED),
        "declined": found.count(Became.DECLINED),
        "not_covered": found.left,
        "not_covered_calls": [
            {"arguments": each.arguments, "became": each.became, "times": each.times}
            for each in found.listed
        ],
    }


def _held_view(held: HeldBack) -> View:
    return {
        "subject": held.subject,
        "server": held.server,
        "tool": held.tool,
        "name": public_name(held.server, held.tool),
        "approved": held.decisions,
        "why": held.why,
    }
