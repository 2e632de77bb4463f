"""Dry run of a change of grants: who would gain or lose what, and what past calls had become."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Annotated, Final, NamedTuple, TypedDict

from msgspec import Meta

from comity.audit.chain import AuditFilter, AuditRecord
from comity.audit.events import AuditType, event_of
from comity.errors import MalformedMessage, Unavailable
from comity.http.api import ApiRequest, ApiRoute, ApiRoutes, Permission
from comity.http.api_input import RequestBody
from comity.mcp.actors import CALL, GROUP_PREFIX, Actor
from comity.policy.administration import GrantAdmin
from comity.policy.api import GrantBody, ListViewEntries
from comity.policy.grants import (
    ANY_SUBJECT,
    VIEW_PREFIX,
    Effect,
    Grant,
    GrantSet,
    GrantSource,
    split_target,
    target_covers,
    verb_covers,
    view_target,
)
from comity.toolkit.text import count_noun

MAX_GRANTS: Final = 100
MAX_PAIRS: Final = 50_000
MAX_LISTED_CHANGES: Final = 500
MAX_ENTRIES: Final = 20_000
ENTRIES_AT_ONCE: Final = 1_000
PAIRS_PER_STEP: Final = 500
READ_TIMEOUT: Final = timedelta(seconds=5)
_END_TYPES: Final = (AuditType.TOOL_EXECUTED, AuditType.TOOL_BLOCKED)

type ToolPlace = tuple[str, str]
type ListPrincipals = Callable[[], Iterable[str]]
type ListTools = Callable[[], Iterable[ToolPlace]]
type FindEntries = Callable[[AuditFilter, int], Awaitable[Sequence[AuditRecord]]]


class ConcernedCall(NamedTuple):
    """A call whose decision a change of grants may change, at the endpoint of a view if named."""

    principal: str
    verb: str
    server: str
    tool: str
    view: str = ""


class GrantPreviewBody(RequestBody, frozen=True):
    """The grants to write and to delete, and how many days of past calls to look at."""

    put: Annotated[tuple[GrantBody, ...], Meta(max_length=MAX_GRANTS)] = ()
    delete: Annotated[tuple[GrantBody, ...], Meta(max_length=MAX_GRANTS)] = ()
    days: Annotated[int, Meta(ge=0, le=90)] = 7


class AccessChangeView(TypedDict):
    """One principal and tool, or gateway verb, whose decision would change.

    `view` names the view at whose endpoint it changes. It is empty for all other endpoints.
    """

    principal: str
    verb: str
    server: str
    tool: str
    view: str
    before: Effect
    after: Effect


class PastCallsView(TypedDict):
    """The calls of the last days that the change concerns, decided anew."""

    sentence: str
    since: datetime
    calls: int
    allowed: int
    asked: int
    denied: int
    changed: int
    is_complete: bool


class GrantPreviewView(TypedDict):
    """A dry run. Nothing was changed. Risk and reviews may ask or refuse beyond the grants."""

    gained: int
    lost: int
    asked: int
    changes: list[AccessChangeView]
    is_complete: bool
    past_calls: PastCallsView


@dataclass(frozen=True, slots=True)
class GrantPreview:
    """Compares the grants in effect with the grants after a change."""

    administration: GrantAdmin
    list_principals: ListPrincipals
    list_tools: ListTools
    find_entries: FindEntries
    clock: Callable[[], datetime]
    groups_of: Callable[[str], Sequence[str]] = lambda _: ()
    members_of: Callable[[Collection[str]], Sequence[str]] = lambda _: ()
    list_view_entries: ListViewEntries = tuple

    @property
    def routes(self) -> ApiRoutes:
        read = Permission.ADMIN_READ
        path = "/api/grants/preview"
        return (ApiRoute("POST", path, read, self._preview, GrantPreviewBody),)

    async def _preview(self, request: ApiRequest[GrantPreviewBody]) -> GrantPreviewView:
        """Return who would gain or lose what. Nothing is changed."""
        said = request.input
        put = [each.to_grant() for each in said.put]
        deleted = [each.to_grant() for each in said.delete]
        before = self.administration.access
        after = changed_access(before, put, deleted)
        changes, is_complete = await self._changes(before, after, [*put, *deleted])
        counted = Counter(each["after"] for each in changes)
        lost = sum(each["before"] is Effect.ALLOW for each in changes)
        return {
            "gained": counted[Effect.ALLOW],
            "lost": lost,
            "asked": counted[Effect.ASK],
            "changes": changes[:MAX_LISTED_CHANGES],
            "is_complete": is_complete and len(changes) <= MAX_LISTED_CHANGES,
            "past_calls": await self._past_calls(before, after, [*put, *deleted], said.days),
        }

    async def _changes(
        self, before: GrantSet, after: GrantSet, grants: Sequence[Grant]
    ) -> tuple[list[AccessChangeView], bool]:
        """Return every changed decision, and whether all pairs were compared."""
        found: list[AccessChangeView] = []
        now, number, seen = self.clock(), 0, set[ConcernedCall]()
        for key in self._concerned(grants):
            if key in seen:
                continue
            seen.add(key)
            number += 1
            if number > MAX_PAIRS:
                return found, False
            if number % PAIRS_PER_STEP == 0:
                # Calls run between two steps, because there may be many pairs.
                await asyncio.sleep(0)
            old, new = (self._decide(access, key, now) for access in (before, after))
            if old is new or self._is_same_elsewhere(before, after, key, now):
                continue
            found.append(
                {
                    "principal": key.principal,
                    "verb": key.verb,
                    "server": key.server,
                    "tool": key.tool,
                    "view": key.view,
                    "before": old,
                    "after": new,
                }
            )
        return found, True

    def _decide(self, access: GrantSet, call: ConcernedCall, at: datetime) -> Effect:
        actor, place = self._actor(call.principal), (call.server, call.tool)
        if call.view:
            return access.authorize_in_view(actor, call.verb, place, call.view, at).effect
        return access.authorize(actor, call.verb, *place, at).effect

    def _is_same_elsewhere(
        self, before: GrantSet, after: GrantSet, call: ConcernedCall, at: datetime
    ) -> bool:
        """Return whether a view decides as the other endpoints do, which are listed already."""
        elsewhere = call._replace(view="")
        return bool(call.view) and all(
            self._decide(access, call, at) is self._decide(access, elsewhere, at)
            for access in (before, after)
        )

    def _concerned(self, grants: Iterable[Grant]) -> Iterable[ConcernedCall]:
        """Yield each principal, verb and target whose decision the grants may change."""
        in_views = list(self.list_view_entries())
        for grant in grants:
            for party in self._parties_of(grant.subject):
                if not verb_covers(grant.verb, CALL):
                    yield ConcernedCall(party, grant.verb, "", "")
                    continue
                for server, tool in self.list_tools():
                    if target_covers(grant.target, server, tool):
                        yield ConcernedCall(party, CALL, server, tool)
                for view, _, server, tool in in_views:
                    is_of_view = grant.target == view_target(view)
                    if is_of_view or target_covers(grant.target, server, tool):
                        yield ConcernedCall(party, CALL, server, tool, view)

    def _parties_of(self, subject: str) -> Iterable[str]:
        if subject == ANY_SUBJECT:
            return self.list_principals()
        if subject.startswith(GROUP_PREFIX):
            return self.members_of([subject.removeprefix(GROUP_PREFIX)])
        return [subject]

    def _actor(self, party: str) -> Actor:
        return Actor(party, groups=tuple(self.groups_of(party)))

    async def _past_calls(
        self, before: GrantSet, after: GrantSet, grants: Sequence[Grant], days: int
    ) -> PastCallsView:
        since = self.clock() - timedelta(days=days)
        counted: Counter[Effect] = Counter()
        changed, is_complete = 0, True
        try:
            async with asyncio.timeout(READ_TIMEOUT.total_seconds()):
                for line in await self._read_calls(grants, since) if days else ():
                    call = ConcernedCall(line.actor, CALL, line.server, line.tool, _view_of(line))
                    old, new = (self._decide(each, call, line.at) for each in (before, after))
                    counted[new] += 1
                    changed += old is not new
        except (TimeoutError, Unavailable):
            is_complete = False
        if counted.total() >= MAX_ENTRIES:
            is_complete = False
        return {
            "sentence": _sentence(counted),
            "since": since,
            "calls": counted.total(),
            "allowed": counted[Effect.ALLOW],
            "asked": counted[Effect.ASK],
            "denied": counted[Effect.DENY],
            "changed": changed,
            "is_complete": is_complete,
        }

    async def _read_calls(self, grants: Sequence[Grant], since: datetime) -> list[AuditRecord]:
        """Return the past calls that the grants concern, each once."""
        found: dict[tuple[str, int], AuditRecord] = {}
        subjects = {grant.subject for grant in grants}
        is_all = ANY_SUBJECT in subjects
        parties = {party for subject in subjects for party in self._parties_of(subject)}
        for criteria, target in _filters_of(grants, since):
            async for line in self._entries(criteria):
                if target.startswith(VIEW_PREFIX) and view_target(_view_of(line)) != target:
                    continue
                if line.server and line.tool and (is_all or line.actor in parties):
                    found[line.node, line.seq] = line
        return list(found.values())

    async def _entries(self, criteria: AuditFilter) -> AsyncGenerator[AuditRecord]:
        """Yield the newest entries, page by page, up to a limit."""
        read = 0
        while read < MAX_ENTRIES:
            page = await self.find_entries(criteria, ENTRIES_AT_ONCE)
            for line in page:
                yield line
            read += len(page)
            if len(page) < ENTRIES_AT_ONCE:
                return
            last = page[-1]
            criteria = replace(criteria, after=(last.at, last.node, last.seq))


def changed_access(access: GrantSet, put: Iterable[Grant], deleted: Iterable[Grant]) -> GrantSet:
    """Return the grants as they would be after a change."""
    kept: dict[str, dict[tuple[str, str, str], Grant]] = {}

    def grants_of(subject: str) -> dict[tuple[str, str, str], Grant]:
        if subject not in kept:
            stored = (
                grant
                for grant in access.index_of(subject).grants
                if grant.source is GrantSource.RECORDS
            )
            kept[subject] = {_key(grant): grant for grant in stored}
        return kept[subject]

    for grant in deleted:
        grants_of(grant.subject).pop(_key(grant), None)
    for grant in put:
        grants_of(grant.subject)[_key(grant)] = grant
    concerned = {subject: list(grants.values()) for subject, grants in kept.items()}
    # A subject without any grant has no index to remove.
    for subject in [name for name, grants in concerned.items() if not grants]:
        if subject not in access.subjects:
            del concerned[subject]
    return access.with_subjects(concerned)


def _key(grant: Grant) -> tuple[str, str, str]:
    return grant.verb, grant.target, repr(grant.where)


def _view_of(line: AuditRecord) -> str:
    """Return the view at whose endpoint a call was made, or an empty text."""
    try:
        return str(event_of(line.body).details.get("view", ""))
    except MalformedMessage:
        return ""


def _filters_of(grants: Iterable[Grant], since: datetime) -> list[tuple[AuditFilter, str]]:
    """Return the filters that find the past calls of these grants, each once, and the target.

    No filter finds the calls in a view, so that of a view finds all calls of the principal.
    """
    found: dict[tuple[str, str, str, str], tuple[AuditFilter, str]] = {}
    for grant in grants:
        if not verb_covers(grant.verb, CALL):
            continue
        # The calls of the members of a group are among those of all principals.
        is_one = grant.subject != ANY_SUBJECT and not grant.subject.startswith(GROUP_PREFIX)
        actor = grant.subject if is_one else ""
        of_view = grant.target if grant.target.startswith(VIEW_PREFIX) else ""
        is_any = grant.target == "*" or bool(of_view)
        server, tool = ("", "") if is_any else split_target(grant.target)
        wanted = (actor, "" if server == "*" else server, "" if tool == "*" else tool)
        criteria = AuditFilter(
            actor=wanted[0],
            server=wanted[1],
            tool=wanted[2],
            types=_END_TYPES,
            since=since,
            newest_first=True,
        )
        found[*wanted, of_view] = criteria, of_view
    return list(found.values())


def _sentence(counted: Counter[Effect]) -> str:
    asked, denied = counted[Effect.ASK], counted[Effect.DENY]
    if not counted.total():
        return "no calls of this kind were made"
    return f"would have asked {count_noun(asked, 'time')} and denied {count_noun(denied, 'time')}"
