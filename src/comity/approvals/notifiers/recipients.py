"""The people that a notifier tells about a request."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from comity.approvals.model import ANSWER_VERB, ApprovalRequest
from comity.approvals.service import ApprovalInbox
from comity.mcp.actors import GROUP_PREFIX
from comity.policy.grants import ANY_SUBJECT, Effect, Grant, GrantSet, GrantSource, verb_covers
from comity.policy.snapshot import GrantSnapshot

MAX_RECIPIENTS: Final = 50
_GRANTS_PER_STEP: Final = 500

type GroupMembers = Callable[[Collection[str]], Sequence[str]]
"""Returns the principals of some groups, by their names without prefix."""


class ApproverDirectory:
    """The principals that have a grant to answer requests, by themselves or in a group."""

    def __init__(
        self,
        grants: GrantSnapshot,
        inbox: ApprovalInbox,
        members_of: GroupMembers = lambda _: (),
    ) -> None:
        self._grants = grants
        self._inbox = inbox
        self._members_of = members_of
        self._indexed_grants: GrantSet | None = None
        self._subjects: list[str] = []
        # The number of the policy generation for which the members of the groups are known.
        self._expanded_at = -1
        self._principals: list[str] = []

    async def approvers_of(self, request: ApprovalRequest) -> Sequence[str]:
        """Return the principals that may answer a request. Many grants are read in pieces."""
        access = self._grants.latest
        if access is not self._indexed_grants:
            self._subjects = await _subjects_in(access)
            self._indexed_grants, self._expanded_at = access, -1
        number = self._grants.generation.number
        if number != self._expanded_at:
            self._principals, self._expanded_at = self._expand_groups(self._subjects), number
        return self._allowed_among(request, self._principals)

    def allowed_in(self, request: ApprovalRequest, subjects: Collection[str]) -> Sequence[str]:
        """Return those of some people and groups that may answer a request, up to a limit."""
        return self._allowed_among(request, self._expand_groups(subjects))

    def may_answer(self, request: ApprovalRequest, person: str) -> bool:
        return self._inbox.link_problem(request, person) is None

    def _allowed_among(self, request: ApprovalRequest, people: Iterable[str]) -> Sequence[str]:
        may = [each for each in people if self.may_answer(request, each)]
        return may[:MAX_RECIPIENTS]

    def _expand_groups(self, subjects: Collection[str]) -> list[str]:
        """Return the principals among some subjects, and the members of the groups among them."""
        groups = [each for each in subjects if each.startswith(GROUP_PREFIX)]
        principals = set(subjects).difference(groups)
        if groups:
            named = [each.removeprefix(GROUP_PREFIX) for each in groups]
            principals.update(self._members_of(named))
        return sorted(principals)


async def _subjects_in(access: GrantSet) -> list[str]:
    found: list[str] = []
    for place, (subject, entries) in enumerate(access.subjects.items()):
        if place % _GRANTS_PER_STEP == 0:
            await asyncio.sleep(0)
        if subject != ANY_SUBJECT and any(_names_subject(grant) for grant in entries.grants):
            found.append(subject)
    return sorted(found)


def _names_subject(grant: Grant) -> bool:
    is_given = grant.effect is Effect.ALLOW and grant.source is not GrantSource.BUILT_IN
    return is_given and verb_covers(grant.verb, ANSWER_VERB)
