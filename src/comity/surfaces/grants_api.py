"""Grants at /api/grants: listed, added, revoked and explained, for those who administer them.

What the operator wrote in the file is shown among them, and can only be changed there.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, cast

from comity.kernel.administration import Administration
from comity.ports import PAGE
from comity.rules import granting
from comity.rules.access import Access
from comity.rules.claims import refuse_claims, without_claims
from comity.rules.conditions import read_or_none
from comity.rules.explaining import Considered, Explanation
from comity.rules.keys import bounds_of
from comity.rules.patterns import parts
from comity.surfaces.asked import Asked, Room, View
from comity.surfaces.members import moment, refuse_strangers, text
from comity.wire.errors import INVALID_PARAMS, NOTHING_HERE, MalformedMessage
from comity.wire.grants import CALL, Effect, Forbid, Grant, Where
from comity.wire.parties import Actor, Key

LONGEST_TEXT: Final = 4000
_MEMBERS: Final = frozenset(
    {"subject", "verb", "target", "effect", "justification", "expires_at", "granted_by", "where"}
)

type Place = tuple[str, str]
type FindKey = Callable[[str], Key | None]
type FindTool = Callable[[str], Place | None]
type Standing = Callable[[str, str], View | None]


def _nobody(_: str) -> None:
    return None


def _unknown(server: str, name: str) -> None:
    return None


class GrantsApi:
    """What an operator reads and changes of who may do what."""

    def __init__(
        self,
        administration: Administration,
        find_key: FindKey = _nobody,
        find_tool: FindTool = _nobody,
        standing: Standing = _unknown,
    ) -> None:
        self._administration = administration
        self._find_key = find_key
        self._find_tool = find_tool
        self._standing = standing

    @property
    def rooms(self) -> dict[str, Room]:
        return {"grants": self.grants}

    async def grants(self, asked: Asked) -> View:
        refuse_claims(asked.body, asked.actor.party)
        match asked.method, asked.place:
            case "GET", ():
                return await self._list(asked)
            case "GET", ("explain",):
                return self._explain(asked)
            case "POST", ():
                return grant_view(await self._administration.put(asked.actor, _wanted(asked.body)))
            case "POST", ("revoke",):
                return await self._revoke(asked)
            case _:
                raise MalformedMessage("there is no such address under /api/grants", NOTHING_HERE)

    async def _list(self, asked: Asked) -> View:
        access, cursor = self._administration.access, asked.query.get("cursor", "")
        if "subject" in asked.query:
            self._administration.demand(asked.actor, "admin/read", "*")
            found = access.entries(asked.query["subject"]).grants
            return {"grants": [grant_view(grant) for grant in found], **_decided(access)}
        page = await self._administration.page(asked.actor, cursor)
        listed = [*(() if cursor else access.decided.grants), *page]
        view: dict[str, object] = {"grants": [grant_view(grant) for grant in listed]}
        if not cursor:
            view |= _decided(access)
        if len(page) >= PAGE:
            view["next"] = page[-1].id
        return view

    async def _revoke(self, asked: Asked) -> View:
        body = {name: value for name, value in asked.body.items() if name != "standing"}
        wanted = _wanted({**body, "effect": Effect.ALLOW})
        named = (wanted.subject, wanted.verb, wanted.target)
        access = self._administration.access
        # All standing answers about it, or the one entry that was named.
        is_all = asked.body.get("standing") is True
        conditions = _conditions(access, named) if is_all else [wanted.where]
        is_fixed = any(
            (each.subject, each.verb, each.target) == named and each.where in conditions
            for each in access.decided.grants
        )
        revoked = [
            await self._administration.revoke(asked.actor, *named, where) for where in conditions
        ]
        left = _conditions(self._administration.access, named)
        return {
            "revoked": any(revoked),
            "stands_in_the_file": is_fixed,
            "standing_answers": len(left),
        }

    def _explain(self, asked: Asked) -> View:
        party, tool = asked.query.get("party", ""), asked.query.get("tool", "")
        verb = granting.verb(asked.query.get("verb", CALL))
        place = self._find_tool(tool) or _place(tool, verb)
        about = Actor(granting.subject(party))
        if "key" in asked.query:
            about = self._bounded(about, asked.query["key"])
        found = self._administration.explain(asked.actor, about, verb, place)
        standing = self._standing(*place) if verb == CALL else None
        return _explained(found, about, verb, place, standing)

    def _bounded(self, about: Actor, key_id: str) -> Actor:
        key = self._find_key(key_id)
        if key is None or key.party != about.party:
            raise MalformedMessage(f"{about.party} has no key {key_id!r:.80}", NOTHING_HERE)
        return replace(about, credential=key.id, permissions=bounds_of(key.permissions))


def _place(tool: str, verb: str) -> Place:
    if "/" not in tool and "__" not in tool and tool != "*":
        raise MalformedMessage(
            f"say of which server {tool!r:.80} is, as server/{tool:.80}", INVALID_PARAMS
        )
    server, name = parts(granting.target(tool, verb))
    return server, name


def _explained(
    found: Explanation, about: Actor, verb: str, place: Place, standing: View | None
) -> View:
    judged = found.judgement
    return {
        "party": about.party,
        "verb": verb,
        "target": "/".join(place),
        "effect": judged.effect,
        "source": "credential" if judged.because == "credential" else judged.source,
        "sentence": found.sentence,
        "entries": [_considered_view(each) for each in found.considered],
        "guardrail": None if judged.forbid is None else forbid_view(judged.forbid),
        "bounds": None if about.permissions is None else [" ".join(b) for b in about.permissions],
        "tool": standing,
    }


def _conditions(access: Access, named: tuple[str, str, str]) -> list[Where]:
    """Of the standing answers that are about this."""
    return [
        grant.where
        for grant in access.entries(named[0]).grants
        if grant.where is not None and (grant.subject, grant.verb, grant.target) == named
    ]


def _considered_view(considered: Considered) -> View:
    level = considered.level.name.lower()
    return {**grant_view(considered.grant), "level": level, "part": considered.part}


def grant_view(grant: Grant) -> dict[str, object]:
    condition = None if grant.where is None else read_or_none(grant.where)
    return {
        "id": grant.id or None,
        "subject": grant.subject,
        "verb": grant.verb,
        "target": grant.target,
        "effect": grant.effect,
        "source": grant.source,
        "granted_by": grant.granted_by,
        "justification": grant.justification,
        "granted_at": grant.granted_at,
        "expires_at": grant.expires_at,
        "where": grant.where,
        "where_words": None if condition is None else condition.words(),
    }


def forbid_view(forbid: Forbid) -> dict[str, object]:
    return {
        "subject": forbid.subject,
        "verb": forbid.verb,
        "target": forbid.target,
        "why": forbid.why,
    }


def _decided(access: Access) -> dict[str, object]:
    decided = access.decided
    return {
        "forbid": [forbid_view(forbid) for forbid in decided.forbids],
        "default_policy": decided.default,
        "policies": dict(decided.policies),
    }


def _wanted(body: Mapping[str, object]) -> Grant:
    refuse_strangers(body, _MEMBERS)
    said = without_claims(body)
    verb = granting.verb(text(said, "verb", LONGEST_TEXT, CALL))
    try:
        effect = Effect(text(said, "effect", LONGEST_TEXT, Effect.ALLOW))
    except ValueError:
        raise MalformedMessage("effect must be allow, ask or deny", INVALID_PARAMS) from None
    return Grant(
        granting.subject(text(said, "subject", LONGEST_TEXT)),
        verb,
        granting.target(text(said, "target", LONGEST_TEXT), verb),
        effect,
        justification=text(said, "justification", LONGEST_TEXT, ""),
        expires_at=moment(said, "expires_at"),
        where=_where(said),
    )


def _where(said: Mapping[str, object]) -> Where:
    where = said.get("where")
    if where is not None and not isinstance(where, Mapping):
        raise MalformedMessage("where must be an object with paths and only", INVALID_PARAMS)
    return cast("Where", where)
