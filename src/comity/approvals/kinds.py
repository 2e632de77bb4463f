"""The rules for each kind of approval request: who answers, with what, for how long."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from comity.approvals.answers import (
    CHOICE_FIELD,
    CONFIRM_OPTION,
    MAX_TEXT_LENGTH,
    TEXT_FIELD,
    form_problem,
)
from comity.approvals.model import (
    LIVE_STATES,
    ApprovalDecision,
    ApprovalDraft,
    ApprovalKind,
    ApprovalRequest,
    ApprovalState,
)
from comity.mcp.actors import ADMIN_WRITE

EXPIRES_FIELD: Final = "expires_at"
"""The member of an answer that says until when a permission is granted."""

type Content = Mapping[str, object]
type AnswerCheck = Callable[[ApprovalRequest, Content, datetime], str | None]
"""Returns why an acceptance cannot have this content; None where it can."""


@dataclass(frozen=True, slots=True)
class AnswerAuthority:
    """A grant that a person needs beside `approval/answer`, and the refusal without it."""

    verb: str
    is_for_server: bool
    """Whether the grant must cover the server of the request, or the whole gateway."""
    refusal_reason: str


@dataclass(frozen=True, slots=True)
class KindRules:
    """The rules for one kind of approval request.

    An approval has its effect in the caller that waits for it, or in the handler that a domain
    registers with `ApprovalService.add_handler`.
    """

    content_problem: AnswerCheck | None = None
    """Checks the content of an acceptance; without it, the content is not checked."""
    is_answerable: bool = True
    wants_content: bool = False
    """Whether an acceptance must have content, so that yes or no is not enough."""
    authority: AnswerAuthority | None = None
    min_open_for: timedelta = timedelta()
    """It stays open at least so long, whatever the settings say."""
    is_consumed: bool = True
    """Whether an approval authorises one use, or all uses until it expires."""
    remembered_ends: frozenset[ApprovalState] = frozenset()
    """Ends that answer the same request, for a while, before people are asked again."""
    is_erased: bool = False
    """Whether the content of an answer is deleted once it was delivered."""
    has_client_prompts: bool = True
    """Whether the client of a pending call may be asked by a form, a page or a task."""

    @property
    def is_yes_or_no(self) -> bool:
        return self.is_answerable and not self.wants_content


def _confirmation_problem(request: ApprovalRequest, content: Content, at: datetime) -> str | None:
    if not content and CONFIRM_OPTION in request.options:
        return None
    return _choice_problem(request, content, at)


def _choice_problem(request: ApprovalRequest, content: Content, at: datetime) -> str | None:
    if set(content) == {CHOICE_FIELD} and content[CHOICE_FIELD] in request.options:
        return None
    return f"choose one of {', '.join(map(repr, request.options)):.1000}"


def _input_problem(request: ApprovalRequest, content: Content, at: datetime) -> str | None:
    if request.schema is not None:
        return form_problem(request.schema, content)
    said = content.get(TEXT_FIELD)
    if (
        set(content) != {TEXT_FIELD}
        or not isinstance(said, str)
        or not 0 < len(said) <= MAX_TEXT_LENGTH
    ):
        return f"a text of at most {MAX_TEXT_LENGTH} characters has to be filled in"
    return None


def _permission_problem(request: ApprovalRequest, content: Content, at: datetime) -> str | None:
    try:
        until = permission_end(content)
        fits = set(content) <= {EXPIRES_FIELD} and (until is None or until > at)
    except ValueError:
        fits = False
    return None if fits else f"{EXPIRES_FIELD} is a moment to come, with its zone"


def _sign_in_problem(request: ApprovalRequest, content: Content, at: datetime) -> str | None:
    return f"sign in to {request.server!r} at the page of this request; that accepts it"


_DECLINED_STATES: Final = frozenset({ApprovalState.DENIED})

RULES_BY_KIND: Final[Mapping[ApprovalKind, KindRules]] = {
    # A call of a tool, a proposal in a topic, or a question of a server with options. The call
    # leaves, the proposal is fulfilled, or the server gets the choice.
    ApprovalKind.CONFIRM: KindRules(_confirmation_problem, remembered_ends=_DECLINED_STATES),
    # A server needs a permission. The answer becomes a grant.
    ApprovalKind.PERMISSION: KindRules(
        _permission_problem,
        authority=AnswerAuthority(
            ADMIN_WRITE,
            is_for_server=False,
            refusal_reason=(
                f"permissions of servers need the grant {ADMIN_WRITE}; you do not have it"
            ),
        ),
        min_open_for=timedelta(days=7),
    ),
    # A callback or an elicitation of a server. The server gets what was filled in.
    ApprovalKind.INPUT: KindRules(_input_problem, wants_content=True, is_erased=True),
    ApprovalKind.SELECT: KindRules(_choice_problem, wants_content=True),
    ApprovalKind.NOTICE: KindRules(is_answerable=False),
    # A call needs an account at its server. Its owner connects one, and that accepts the request.
    ApprovalKind.SIGN_IN: KindRules(_sign_in_problem, wants_content=True, is_consumed=False),
    # A principal without the grant registers a server. After an approval, the server starts.
    ApprovalKind.REGISTRATION: KindRules(
        authority=AnswerAuthority(
            ADMIN_WRITE,
            is_for_server=True,
            refusal_reason=f"you were not granted {ADMIN_WRITE} on this server; see `comity "
            "grants`",
        ),
        remembered_ends=_DECLINED_STATES,
        # No prompt of a client knows the method that registers a server.
        has_client_prompts=False,
    ),
    # A call or a server wants to reach beyond its scope. It may, until the approval expires.
    ApprovalKind.SCOPE: KindRules(is_consumed=False, remembered_ends=_DECLINED_STATES),
    # A budget is used up. Its limit is raised for the day.
    ApprovalKind.BUDGET: KindRules(
        remembered_ends=frozenset({ApprovalState.DENIED, ApprovalState.CANCELLED})
    ),
    # A server requests a completion from a model. After an approval, the model gets the request.
    ApprovalKind.SAMPLING: KindRules(),
}


def answer_problem(
    request: ApprovalRequest, decision: ApprovalDecision, content: Content, at: datetime
) -> str | None:
    """Return why this cannot be an answer to the request, or None if it can."""
    rules = RULES_BY_KIND[request.kind]
    if not rules.is_answerable:
        return "a notification needs no answer"
    if rules.content_problem is None or (
        request.kind is ApprovalKind.CONFIRM and not request.options
    ):
        return None
    if decision is not ApprovalDecision.ACCEPT:
        return "only who accepts fills something in" if content else None
    return rules.content_problem(request, content, at)


def permission_end(content: Content) -> datetime | None:
    """Return until when a permission is granted; None is for good. Raises ValueError."""
    said = content.get(EXPIRES_FIELD)
    if said is None:
        return None
    if not isinstance(said, str):
        raise ValueError("not a time")  # noqa: TRY004  # one kind for callers
    found = datetime.fromisoformat(said)
    if found.tzinfo is None:
        raise ValueError("a time without a zone")
    return found


def expiry_for(draft: ApprovalDraft, at: datetime, default: timedelta) -> datetime:
    """Return until when a request that is made now can be answered."""
    if draft.open_for is not None:
        return at + draft.open_for
    return at + max(default, RULES_BY_KIND[draft.kind].min_open_for)


def is_still_valid(request: ApprovalRequest, at: datetime, remembered_for: timedelta) -> bool:
    """Return whether an earlier request still answers the same question."""
    if request.state in LIVE_STATES:
        return request.expires_at > at
    ended = request.ended_at or request.created_at
    return (
        request.state in RULES_BY_KIND[request.kind].remembered_ends and at - ended < remembered_for
    )
