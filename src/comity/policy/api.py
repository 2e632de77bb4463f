"""Operator API for grants."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Annotated, NotRequired, TypedDict

from msgspec import Meta

from comity.errors import INVALID_PARAMS, NOTHING_HERE, MalformedMessage
from comity.http.api import ApiRequest, ApiRoute, ApiRoutes, Permission
from comity.http.api_input import RequestBody, RequestQuery, ZonedTime
from comity.identity.keys import bounds_of
from comity.identity.principals import ApiKey
from comity.mcp.actors import ADMIN_READ, CALL, Actor
from comity.policy import grants as granting
from comity.policy.administration import GrantAdmin
from comity.policy.conditions import parse_or_none
from comity.policy.explanations import (
    ConsideredEntry,
    DecisionExplanation,
    EntryRole,
    ViewEntry,
    ViewExplanation,
)
from comity.policy.grants import (
    MAX_PLACES,
    VIEW_PREFIX,
    DefaultPolicy,
    Effect,
    Grant,
    GrantSet,
    GrantSource,
    Guardrail,
    Where,
    split_target,
)
from comity.policy.risk import Risk
from comity.storage.changes import PAGE
from comity.storage.values import to_optional_utc

type GrantText = Annotated[str, Meta(max_length=4000)]

type Place = tuple[str, str]
type FindKey = Callable[[str], ApiKey | None]
type FindTool = Callable[[str], Place | None]


class GrantView(TypedDict):
    """A grant. `where_text` says its condition in words.

    `reach` has the folders, hosts or programs that a permission of a server is for.
    """

    id: str | None
    subject: str
    verb: str
    target: str
    effect: Effect
    source: GrantSource
    granted_by: str
    justification: str
    granted_at: datetime | None
    expires_at: datetime | None
    where: Mapping[str, object] | None
    where_text: str | None
    reach: list[str]


class GuardrailView(TypedDict):
    """A guardrail of the configuration file, which no grant overrides."""

    subject: str
    verb: str
    target: str
    reason: str


class StaticRulesView(TypedDict):
    """The rules of the configuration file beside its grants."""

    forbid: list[GuardrailView]
    default_policy: DefaultPolicy
    policies: Mapping[str, DefaultPolicy]


class GrantPage(TypedDict):
    """One page of grants. The first page has the rules of the configuration file too."""

    grants: list[GrantView]
    forbid: NotRequired[list[GuardrailView]]
    default_policy: NotRequired[DefaultPolicy]
    policies: NotRequired[Mapping[str, DefaultPolicy]]
    next: NotRequired[str]


class RevocationView(TypedDict):
    """Whether a grant was deleted, and what remains for its subject, verb and target."""

    deleted: bool
    is_in_file: bool
    conditional_grants: int


class ConsideredView(GrantView):
    """A grant that was considered for a decision, and its part in it."""

    level: str
    role: EntryRole


class ReviewStateView(TypedDict):
    """The review of a tool: its risk, and whether a person is asked before a call."""

    refusal: str | None
    is_asked: bool
    risk: Risk


class ViewDecisionView(TypedDict):
    """The decision about the tool at the endpoint of a view, where it has this name."""

    view: str
    name: str
    effect: Effect
    sentence: str


class ExplanationView(TypedDict):
    """Why a call is allowed, refused or asked about, and which entry decided."""

    principal: str
    verb: str
    target: str
    effect: Effect
    source: str
    sentence: str
    entries: list[ConsideredView]
    views: list[ViewDecisionView]
    guardrail: GuardrailView | None
    bounds: list[str] | None
    tool: ReviewStateView | None


type ListViewEntries = Callable[[], Iterable[ViewEntry]]
type Standing = Callable[[str, str], ReviewStateView | None]


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
    reach: Annotated[tuple[GrantText, ...], Meta(max_length=MAX_PLACES)] = ()

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
            reach=self.reach,
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
        list_view_entries: ListViewEntries = tuple,
    ) -> None:
        self._administration = administration
        self._find_key = find_key
        self._find_tool = find_tool
        self._find_review = find_review
        self._list_view_entries = list_view_entries

    @property
    def routes(self) -> ApiRoutes:
        read, write = Permission.ADMIN_READ, Permission.ADMIN_WRITE
        return (
            ApiRoute("GET", "/api/grants", read, self._list_grants, GrantPageQuery),
            ApiRoute("GET", "/api/grants/explain", read, self._explain, ExplainQuery),
            ApiRoute("POST", "/api/grants", write, self._put_grant, GrantBody),
            ApiRoute("POST", "/api/grants/delete", write, self._revoke, GrantRevocationBody),
        )

    async def _list_grants(self, request: ApiRequest[GrantPageQuery]) -> GrantPage:
        access, wanted = self._administration.access, request.input
        if wanted.subject is not None:
            self._administration.require_grant(request.actor, ADMIN_READ, "*")
            found = access.index_of(wanted.subject).grants
            return {"grants": [grant_view(grant) for grant in found], **_static_rules_view(access)}
        page = await self._administration.page(request.actor, wanted.cursor)
        listed = [*(() if wanted.cursor else access.static_rules.grants), *page]
        view: GrantPage = {"grants": [grant_view(grant) for grant in listed]}
        if not wanted.cursor:
            view = {**view, **_static_rules_view(access)}
        if len(page) >= PAGE:
            view["next"] = page[-1].id
        return view

    async def _put_grant(self, request: ApiRequest[GrantBody]) -> GrantView:
        return grant_view(await self._administration.put(request.actor, request.input.to_grant()))

    async def _revoke(self, request: ApiRequest[GrantRevocationBody]) -> RevocationView:
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

    async def _explain(self, request: ApiRequest[ExplainQuery]) -> ExplanationView:
        wanted = request.input
        verb = granting.parse_verb(wanted.verb)
        place = self._find_tool(wanted.tool) or _entry_of(wanted.tool, verb)
        about = self._administration.actor_named(granting.parse_subject(wanted.principal))
        if wanted.key is not None:
            about = self._with_key_bounds(about, wanted.key)
        found = self._administration.explain(request.actor, about, verb, place)
        standing = self._find_review(*place) if verb == CALL else None
        explained = _explanation_view(found, about, verb, place, standing)
        in_views = [
            self._administration.explain_in_view(about, verb, each)
            for each in self._list_view_entries()
            if (each.server, each.tool) == place
        ]
        return {**explained, "views": [_view_decision(each) for each in in_views]}

    def _with_key_bounds(self, about: Actor, key_id: str) -> Actor:
        key = self._find_key(key_id)
        if key is None or key.party != about.party:
            raise MalformedMessage(f"{about.party} has no key {key_id!r:.80}", NOTHING_HERE)
        return replace(about, credential=key.id, permissions=bounds_of(key.permissions))


def _entry_of(tool: str, verb: str) -> Place:
    if tool.startswith(VIEW_PREFIX):
        raise MalformedMessage(
            f"name a tool of the view {tool!r:.80}, as server/tool; the answer tells its views",
            INVALID_PARAMS,
        )
    if "/" not in tool and "__" not in tool and tool != "*":
        raise MalformedMessage(
            f"name the server of {tool!r:.80}, as server/{tool:.80}", INVALID_PARAMS
        )
    server, name = split_target(granting.parse_target(tool, verb))
    return server, name


def _explanation_view(
    explanation: DecisionExplanation,
    about: Actor,
    verb: str,
    entry: Place,
    review: ReviewStateView | None,
) -> ExplanationView:
    judged = explanation.decision
    return {
        "principal": about.party,
        "verb": verb,
        "target": "/".join(entry),
        "effect": judged.effect,
        "source": "credential" if judged.reason == "credential" else judged.source,
        "sentence": explanation.sentence,
        "entries": [_considered_view(each) for each in explanation.considered],
        "views": [],
        "guardrail": None if judged.guardrail is None else guardrail_view(judged.guardrail),
        "bounds": None if about.permissions is None else [" ".join(b) for b in about.permissions],
        "tool": review,
    }


def _view_decision(explanation: ViewExplanation) -> ViewDecisionView:
    return {
        "view": explanation.entry.view,
        "name": explanation.entry.name,
        "effect": explanation.decision.effect,
        "sentence": explanation.sentence,
    }


def _conditions(access: GrantSet, named: tuple[str, str, str]) -> list[Where]:
    """The conditions of the conditional grants with this subject, verb and target."""
    return [
        grant.where
        for grant in access.index_of(named[0]).grants
        if grant.where is not None and (grant.subject, grant.verb, grant.target) == named
    ]


def _considered_view(considered: ConsideredEntry) -> ConsideredView:
    level = considered.level.name.lower()
    return {**grant_view(considered.grant), "level": level, "role": considered.role}


def grant_view(grant: Grant) -> GrantView:
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
        "reach": list(grant.reach),
    }


def guardrail_view(guardrail: Guardrail) -> GuardrailView:
    return {
        "subject": guardrail.subject,
        "verb": guardrail.verb,
        "target": guardrail.target,
        "reason": guardrail.why,
    }


def _static_rules_view(access: GrantSet) -> StaticRulesView:
    decided = access.static_rules
    return {
        "forbid": [guardrail_view(forbid) for forbid in decided.guardrails],
        "default_policy": decided.default,
        "policies": dict(decided.policies),
    }
