"""Operator API for grants."""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

from msgspec import Meta

from comity.errors import INVALID_PARAMS, NOTHING_HERE, MalformedMessage
from comity.http.api import ApiRequest, ApiRoute, ApiRoutes, Permission, View
from comity.http.api_input import RequestBody, RequestQuery, ZonedTime
from comity.identity.keys import bounds_of
from comity.identity.principals import ApiKey
from comity.mcp.actors import ADMIN_READ, CALL, Actor
from comity.policy import grants as granting
from comity.policy.administration import GrantAdmin
from comity.policy.conditions import parse_or_none
from comity.policy.grants import (
    ConsideredEntry,
    DecisionExplanation,
    Effect,
    Grant,
    GrantSet,
    Guardrail,
    Where,
    split_target,
)
from comity.storage.changes import PAGE
from comity.storage.values import to_optional_utc

type GrantText = Annotated[str, Meta(max_length=4000)]

type Place = tuple[str, str]
type FindKey = Callable[[str], ApiKey | None]
type FindTool = Callable[[str], Place | None]
type Standing = Callable[[str, str], View | None]


class GrantPageQuery(RequestQuery, frozen=True):
    """Which grants to list."""

    subject: str | None = None
    cursor: str = ""


class ExplainQuery(RequestQuery, frozen=True):
    """The principal, and the call whose decision is explained."""

    principal: str = ""
    tool: str = ""
    verb: str = CALL
    key: str | None = None


class GrantBody(RequestBody, frozen=True):
    """The grant to write."""

    subject: GrantText
    target: GrantText
    verb: GrantText = CALL
    effect: Effect = Effect.ALLOW
    justification: GrantText = ""
    expires_at: ZonedTime | None = None
    where: dict[str, object] | None = None

    def to_grant(self) -> Grant:
        verb = granting.parse_verb(self.verb)
        return Grant(
            granting.parse_subject(self.subject),
            verb,
            granting.parse_target(self.target, verb),
            self.effect,
            justification=self.justification,
            expires_at=to_optional_utc(self.expires_at),
            where=self.where,
        )


class GrantRevocationBody(GrantBody, frozen=True):
    """The grant to revoke, or the target of all conditional grants to revoke."""

    conditional: bool = False


def _no_key(_: str) -> None:
    return None


def _no_review(server: str, name: str) -> None:
    return None


class GrantsApi:
    """Routes with which an operator reads, writes, revokes and explains grants."""

    def __init__(
        self,
        administration: GrantAdmin,
        find_key: FindKey = _no_key,
        find_tool: FindTool = _no_key,
        find_review: Standing = _no_review,
    ) -> None:
        self._administration = administration
        self._find_key = find_key
        self._find_tool = find_tool
        self._find_review = find_review

    @property
    def routes(self) -> ApiRoutes:
        read, write = Permission.ADMIN_READ, Permission.ADMIN_WRITE
        return (
            ApiRoute("GET", "/api/grants", read, self._list_grants, GrantPageQuery),
            ApiRoute("GET", "/api/grants/explain", read, self._explain, ExplainQuery),
            ApiRoute("POST", "/api/grants", write, self._put_grant, GrantBody),
            ApiRoute("POST", "/api/grants/delete", write, self._revoke, GrantRevocationBody),
        )

    async def _list_grants(self, request: ApiRequest[GrantPageQuery]) -> View:
        access, wanted = self._administration.access, request.input
        if wanted.subject is not None:
            self._administration.require_grant(request.actor, ADMIN_READ, "*")
            found = access.index_of(wanted.subject).grants
            return {"grants": [grant_view(grant) for grant in found], **_static_rules_view(access)}
        page = await self._administration.page(request.actor, wanted.cursor)
        listed = [*(() if wanted.cursor else access.static_rules.grants), *page]
        view: dict[str, object] = {"grants": [grant_view(grant) for grant in listed]}
        if not wanted.cursor:
            view |= _static_rules_view(access)
        if len(page) >= PAGE:
            view["next"] = page[-1].id
        return view

    async def _put_grant(self, request: ApiRequest[GrantBody]) -> View:
        return grant_view(await self._administration.put(request.actor, request.input.to_grant()))

    async def _revoke(self, request: ApiRequest[GrantRevocationBody]) -> View:
        wanted = request.input.to_grant()
        named = (wanted.subject, wanted.verb, wanted.target)
        access = self._administration.access
        # With `conditional`, revoke all conditional grants for this target, otherwise the one named
        # grant.
        conditions = _conditions(access, named) if request.input.conditional else [wanted.where]
        is_fixed = any(
            (each.subject, each.verb, each.target) == named and each.where in conditions
            for each in access.static_rules.grants
        )
        revoked = [
            await self._administration.revoke(request.actor, *named, where) for where in conditions
        ]
        left = _conditions(self._administration.access, named)
        return {
            "deleted": any(revoked),
            "is_in_file": is_fixed,
            "conditional_grants": len(left),
        }

    async def _explain(self, request: ApiRequest[ExplainQuery]) -> View:
        wanted = request.input
        verb = granting.parse_verb(wanted.verb)
        place = self._find_tool(wanted.tool) or _entry_of(wanted.tool, verb)
        about = Actor(granting.parse_subject(wanted.principal))
        if wanted.key is not None:
            about = self._with_key_bounds(about, wanted.key)
        found = self._administration.explain(request.actor, about, verb, place)
        standing = self._find_review(*place) if verb == CALL else None
        return _explanation_view(found, about, verb, place, standing)

    def _with_key_bounds(self, about: Actor, key_id: str) -> Actor:
        key = self._find_key(key_id)
        if key is None or key.party != about.party:
            raise MalformedMessage(f"{about.party} has no key {key_id!r:.80}", NOTHING_HERE)
        return replace(about, credential=key.id, permissions=bounds_of(key.permissions))


def _entry_of(tool: str, verb: str) -> Place:
    if "/" not in tool and "__" not in tool and tool != "*":
        raise MalformedMessage(
            f"name the server of {tool!r:.80}, as server/{tool:.80}", INVALID_PARAMS
        )
    server, name = split_target(granting.parse_target(tool, verb))
    return server, name


def _explanation_view(
    explanation: DecisionExplanation, about: Actor, verb: str, entry: Place, review: View | None
) -> View:
    judged = explanation.decision
    return {
        "principal": about.party,
        "verb": verb,
        "target": "/".join(entry),
        "effect": judged.effect,
        "source": "credential" if judged.reason == "credential" else judged.source,
        "sentence": explanation.sentence,
        "entries": [_considered_view(each) for each in explanation.considered],
        "guardrail": None if judged.guardrail is None else guardrail_view(judged.guardrail),
        "bounds": None if about.permissions is None else [" ".join(b) for b in about.permissions],
        "tool": review,
    }


def _conditions(access: GrantSet, named: tuple[str, str, str]) -> list[Where]:
    """The conditions of the conditional grants with this subject, verb and target."""
    return [
        grant.where
        for grant in access.index_of(named[0]).grants
        if grant.where is not None and (grant.subject, grant.verb, grant.target) == named
    ]


def _considered_view(considered: ConsideredEntry) -> View:
    level = considered.level.name.lower()
    return {**grant_view(considered.grant), "level": level, "role": considered.role}


def grant_view(grant: Grant) -> dict[str, object]:
    condition = None if grant.where is None else parse_or_none(grant.where)
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
        "where_text": None if condition is None else condition.describe(),
    }


def guardrail_view(guardrail: Guardrail) -> dict[str, object]:
    return {
        "subject": guardrail.subject,
        "verb": guardrail.verb,
        "target": guardrail.target,
        "reason": guardrail.why,
    }


def _static_rules_view(access: GrantSet) -> dict[str, object]:
    decided = access.static_rules
    return {
        "forbid": [guardrail_view(forbid) for forbid in decided.guardrails],
        "default_policy": decided.default,
        "policies": dict(decided.policies),
    }
