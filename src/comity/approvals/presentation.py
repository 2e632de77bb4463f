"""The text of an approval request, and its signed links."""

import hashlib
import hmac
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, TypedDict, cast

from comity.approvals.model import (
    SCOPE,
    ApprovalAnswer,
    ApprovalDecision,
    ApprovalKind,
    ApprovalRequest,
    ApprovalState,
)
from comity.catalog.definitions import reveal_hidden
from comity.policy.risk import Risk
from comity.toolkit.sealed_tokens import seal_token, unseal_token
from comity.toolkit.text import count_noun, escape_unsafe, object_members

MAX_VALUE_LETTERS: Final = 16_000
MIN_SHORT_ID_LENGTH: Final = 8
DEFAULT_ORIGIN: Final = "http://127.0.0.1:2664"
"""The address at which commands look for a gateway by default."""

ARGUMENTS_NOT_KEPT_TEXT: Final = "not stored; the digest is below"
BEYOND_SCOPE_TEXT: Final = " beyond its scope"
_RISK_ORDER: Final = tuple(Risk)
_TEXT_BY_DECISION: Final[Mapping[ApprovalDecision, str]] = {
    ApprovalDecision.ACCEPT: "approved it",
    ApprovalDecision.DECLINE: "denied it",
    ApprovalDecision.CANCEL: "cancelled it",
    ApprovalDecision.DEFER: "wants to decide later",
}
_TEXT_BY_STATE: Final[Mapping[ApprovalState, str]] = {
    ApprovalState.PENDING: "Pending.",
    ApprovalState.DEFERRED: "Pending; the answer was deferred.",
    ApprovalState.APPROVED: "Approved. The call has not run yet.",
    ApprovalState.CONSUMED: "Approved. The call has run.",
    ApprovalState.DENIED: "Denied.",
    ApprovalState.CANCELLED: "Cancelled.",
    ApprovalState.EXPIRED: "Expired before it was answered, or before the approval was used.",
    ApprovalState.WITHDRAWN: "Withdrawn: the call is no longer possible.",
}


class DetailRow(NamedTuple):
    """One row of the details of a request. `is_code` keeps the line breaks."""

    name: str
    text: str
    is_code: bool = False


def one_line(text: str) -> str:
    """Return an untrusted text on one line, with hidden characters shown."""
    shown = escape_unsafe(reveal_hidden(text))
    return shown.replace("\n", "\\n").replace("\t", "\\t")


def whole_json(value: object) -> str:
    """Return a value as indented JSON, with hidden characters shown."""
    return escape_unsafe(
        reveal_hidden(json.dumps(value, indent=2, ensure_ascii=False, default=str))
    )


def fits_message(request: ApprovalRequest, maximum: int = MAX_VALUE_LETTERS) -> bool:
    """Return whether a message of this length shows all arguments that approvers may see.

    A message that cuts them must offer no answer: the rest would be approved unseen.
    """
    return len(whole_json(request.about.get("arguments"))) <= maximum


def indented_json(value: object) -> str:
    """Return a value as indented JSON, cut where it is too long."""
    text = whole_json(value)
    if len(text) <= MAX_VALUE_LETTERS:
        return text
    hidden = count_noun(len(text) - MAX_VALUE_LETTERS, "more character")
    return f"{text[:MAX_VALUE_LETTERS]}\n… and {hidden} not shown"


def request_risk(request: ApprovalRequest) -> str:
    """Return the risk at the time of the request, or empty without one."""
    return one_line(str(request.about.get("risk") or ""))


def urgency_key(request: ApprovalRequest) -> tuple[int, datetime]:
    """The sort key of requests: the most urgent has the least."""
    risk = request_risk(request)
    place = _RISK_ORDER.index(Risk(risk)) if risk in _RISK_ORDER else -1
    return -place, request.created_at


def sort_by_urgency(requests: Iterable[ApprovalRequest]) -> list[ApprovalRequest]:
    return sorted(requests, key=urgency_key)


def describe_request(request: ApprovalRequest) -> str:
    """Describe a request in one sentence, without a full stop."""
    if request.kind is ApprovalKind.CONFIRM and not request.options:
        reach = BEYOND_SCOPE_TEXT if SCOPE in request.about else ""
        return f"{one_line(request.asker)} wants to call {public_tool_name(request)}{reach}"
    return one_line(request.message) or f"{one_line(request.asker)} asks for {request.kind}"


def approval_command(id: str, origin: str) -> str:
    """Return the command that approves a request at this gateway."""
    url = "" if origin == DEFAULT_ORIGIN else f" --url {origin}"
    return f"`comity approve {id}{url}`"


def public_tool_name(request: ApprovalRequest) -> str:
    """Return the name of the tool that clients use."""
    return one_line(str(request.about.get("tool") or f"{request.server}/{request.tool}"))


def describe_state(request: ApprovalRequest) -> str:
    """Describe the state of a request, and its answers."""
    said = [
        f"{one_line(each.by)} {_TEXT_BY_DECISION[each.verdict]}"
        + (f": {one_line(each.reason)}" if each.reason else "")
        for each in request.answers
    ]
    return " ".join([_TEXT_BY_STATE[request.state], *(f"{each}." for each in said)])


_HARMLESS: Final = frozenset({Risk.SAFE, Risk.MODERATE})


def confirmation_word(request: ApprovalRequest) -> str | None:
    """Return the word that people type to approve, so that no slip of the hand can; None if none.

    A request without a known risk needs it too.
    """
    if request_risk(request) in _HARMLESS:
        return None
    # A request for a whole server has no tool.
    return one_line(request.tool).strip() or one_line(request.server).strip() or "approve"


def detail_rows(request: ApprovalRequest, now: datetime, similar_text: str = "") -> list[DetailRow]:
    """Return all rows that an approver should read."""
    found = [
        DetailRow("Requested by", one_line(request.asker)),
        DetailRow("Server", one_line(request.server)),
        DetailRow("Tool", one_line(request.tool)),
        DetailRow("Topic", one_line(str(request.about.get("topic") or ""))),
        DetailRow("Risk", request_risk(request)),
        DetailRow("History", one_line(similar_text)),
        _action_row(request),
        _scope_row(request),
        DetailRow("Needs", "" if request.quorum == 1 else f"{request.quorum} people who approve"),
        DetailRow("Expires", describe_deadline(request, now)),
        DetailRow(
            "Requested",
            f"{format_duration(now - request.created_at)} ago, "
            f"at {format_moment(request.created_at)}",
        ),
        DetailRow(
            "Status",
            ""
            if request.state is ApprovalState.PENDING and not request.answers
            else describe_state(request),
        ),
        DetailRow("Definition", one_line(str(request.about.get("definition") or ""))),
        DetailRow("Digest", one_line(str(request.about.get("arguments_digest") or ""))),
        DetailRow("Trace", one_line(request.trace)),
    ]
    return [row for row in found if row.text]


def _action_row(request: ApprovalRequest) -> DetailRow:
    """Return what an answer is about, never cut: people answer beside these rows."""
    if "arguments_digest" not in request.about:
        rest = {name: said for name, said in request.about.items() if name not in ("tool", "risk")}
        return DetailRow("About", whole_json(rest) if rest else "", is_code=True)
    arguments = request.about.get("arguments")
    if arguments is None:
        return DetailRow("Arguments", ARGUMENTS_NOT_KEPT_TEXT)
    return DetailRow("Arguments", whole_json(arguments), is_code=True)


def _scope_row(request: ApprovalRequest) -> DetailRow:
    """Return the scope beyond the allowed ones that an approved call would reach, never cut."""
    reach = request.about.get(SCOPE) if "arguments_digest" in request.about else None
    return DetailRow("Beyond its scope", whole_json(reach) if reach else "", is_code=True)


def describe_deadline(request: ApprovalRequest, now: datetime) -> str:
    """Describe when the time to answer, or the approval, ends."""
    if request.state not in (ApprovalState.PENDING, ApprovalState.DEFERRED, ApprovalState.APPROVED):
        return ""
    if request.expires_at <= now:
        return f"at {format_moment(request.expires_at)}, which is past"
    return f"in {format_duration(request.expires_at - now)}, at {format_moment(request.expires_at)}"


def format_moment(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def format_duration(time: timedelta) -> str:
    """Return a duration in its largest unit."""
    seconds = max(0, round(time.total_seconds()))
    for unit, size in (("days", 86_400), ("hours", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def short_ids(ids: Iterable[str]) -> dict[str, str]:
    """Return the shortest unique beginning of each id, with a few letters at least."""
    found = sorted(set(ids))
    shown: dict[str, str] = {}
    for place, id in enumerate(found):
        near = [*found[max(place - 1, 0) : place], *found[place + 1 : place + 2]]
        alike = max((_common_prefix_length(id, other) for other in near), default=0)
        shown[id] = id[: max(MIN_SHORT_ID_LENGTH, alike + 1)]
    return shown


def _common_prefix_length(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), len(one))


class AnswerView(TypedDict):
    """One answer to an approval request."""

    by: str
    verdict: ApprovalDecision
    at: datetime
    reason: str


class RequestView(TypedDict):
    """An approval request, as every program that may see it reads it."""

    id: str
    kind: ApprovalKind
    state: ApprovalState
    requester: str
    server: str
    tool: str
    summary: str
    message: str
    risk: str | None
    about: Mapping[str, object]
    digest: str
    created_at: datetime
    expires_at: datetime
    ended_at: datetime | None
    quorum: int
    options: Sequence[str]
    schema: Mapping[str, object] | None
    trace: str
    call: str | None
    answers: list[AnswerView]


class ApprovalView(RequestView):
    """An approval request, with what the reader may do with it."""

    similar: str | None
    may_answer: bool
    # The word that a person types to approve it.
    confirmation_word: str | None
    refusal_reason: str | None
    approvers: str | None


def request_fields(request: ApprovalRequest) -> RequestView:
    """Return a request as a JSON object."""
    return {
        "id": request.id,
        "kind": request.kind,
        "state": request.state,
        "requester": request.asker,
        "server": request.server,
        "tool": request.tool,
        "summary": describe_request(request),
        "message": request.message,
        "risk": request_risk(request) or None,
        "about": dict(request.about),
        "digest": request.digest,
        "created_at": request.created_at,
        "expires_at": request.expires_at,
        "ended_at": request.ended_at,
        "quorum": request.quorum,
        "options": request.options,
        "schema": request.schema,
        "trace": request.trace,
        "call": request.call or None,
        "answers": [
            {"by": each.by, "verdict": each.verdict, "at": each.at, "reason": each.reason}
            for each in request.answers
        ],
    }


def request_of_fields(fields: Mapping[str, Any]) -> ApprovalRequest:
    """Return the request that `request_fields` described. Missing members are empty."""
    listed = fields.get("answers")
    answers = cast("list[object]", listed) if isinstance(listed, list) else []
    return ApprovalRequest(
        id=str(fields["id"]),
        kind=ApprovalKind(fields["kind"]),
        asker=str(fields["requester"]),
        server=str(fields["server"]),
        tool=str(fields["tool"]),
        digest=str(fields.get("digest", "")),
        message=str(fields.get("message", "")),
        about=object_members(fields.get("about")),
        created_at=_parse_time(fields["created_at"]),
        expires_at=_parse_time(fields["expires_at"]),
        state=ApprovalState(fields["state"]),
        quorum=int(fields.get("quorum", 1)),
        trace=str(fields.get("trace", "")),
        answers=tuple(_answer_of(object_members(each)) for each in answers),
    )


def _answer_of(fields: Mapping[str, Any]) -> ApprovalAnswer:
    verdict, reason = ApprovalDecision(fields["verdict"]), str(fields.get("reason", ""))
    return ApprovalAnswer(str(fields["by"]), verdict, _parse_time(fields["at"]), reason)


def _parse_time(value: object) -> datetime:
    return datetime.fromisoformat(str(value)).astimezone(UTC)


# How a request differs from earlier ones. People do not read the same text again and again.


@dataclass(slots=True)
class SimilarApprovals:
    """The results of the requests of one principal for one tool."""

    approved: int = 0
    declined: int = 0
    digests: set[str] = field(default_factory=set[str])
    last: Mapping[str, object] | None = None
    """The arguments of the last approved one, where they are known."""


type Seen = Mapping[tuple[str, str, str], SimilarApprovals]


def collect_similar(requests: Sequence[ApprovalRequest]) -> Seen:
    """Collect the requests that were decided lately, oldest first."""
    found: dict[tuple[str, str, str], SimilarApprovals] = {}
    for ask in requests:
        alike = found.setdefault((ask.asker, ask.server, ask.tool), SimilarApprovals())
        if any(each.verdict is ApprovalDecision.DECLINE for each in ask.answers):
            alike.declined += 1
        elif ask.state in (ApprovalState.APPROVED, ApprovalState.CONSUMED):
            alike.approved += 1
            alike.digests.add(ask.digest)
            arguments = ask.about.get("arguments")
            is_object = isinstance(arguments, Mapping)
            alike.last = cast("Mapping[str, object]", arguments) if is_object else None
    return found


def describe_similar(request: ApprovalRequest, before: Seen) -> str:
    """Describe similar requests of the last day, and what differs in this one."""
    if request.kind is not ApprovalKind.CONFIRM or request.options:
        return ""
    alike = before.get((request.asker, request.server, request.tool))
    if alike is None or not (alike.approved or alike.declined):
        return "No earlier decisions for this agent and tool in the last 24 h"
    counted = [
        f"{how} {count_noun(times, 'time')}"
        for how, times in (("approved", alike.approved), ("denied", alike.declined))
        if times
    ]
    told = f"same tool and principal {' and '.join(counted)} in the last 24 h"
    return f"{told}; {_difference(request, alike)}" if alike.approved else told


def _difference(request: ApprovalRequest, alike: SimilarApprovals) -> str:
    if request.digest in alike.digests:
        return "with the same arguments"
    arguments = request.about.get("arguments")
    if alike.last is None or not isinstance(arguments, Mapping):
        return "never with these arguments"
    now = cast("Mapping[str, object]", arguments)
    names = sorted({*now, *alike.last})
    other = [name for name in names if now.get(name) != alike.last.get(name)]
    if not other:
        return "never with these arguments"
    named = ", ".join(one_line(name) for name in other[:5])
    return f"this one differs from the last approved one in {named}"


SIGNATURE_HEADER: Final = "X-Comity-Signature"
PAGE_PATH: Final = "/approvals/"
_LINK_PURPOSE: Final = "answer an ask"
_SIGN_IN_PURPOSE: Final = "sign in to answer"


@dataclass(frozen=True, slots=True)
class ApprovalLink:
    """The right of a principal to answer a request until a time.

    `credential` is the one that the principal signed in with. It is empty where an operator, or the
    gateway itself, made the link for the principal.
    """

    ask: str
    party: str
    expires_at: datetime
    credential: str = ""


class ApprovalLinks:
    """Makes signed links, and verifies them."""

    __slots__ = ("_key",)

    def __init__(self, pepper: bytes) -> None:
        self._key = hmac.digest(pepper, b"links to asks", hashlib.sha256)

    def __repr__(self) -> str:
        return "Links()"

    def seal(self, link: ApprovalLink) -> str:
        """Return a link whose holder answers as its principal."""
        return self._seal(_LINK_PURPOSE, link)

    def seal_sign_in(self, link: ApprovalLink) -> str:
        """Return a link that shows nothing before its principal has signed in."""
        return self._seal(_SIGN_IN_PURPOSE, link)

    def unseal(self, token: str, ask: str, now: datetime) -> ApprovalLink | None:
        """Return the link to answer with if it is valid for this request now, else None."""
        return self._unseal(_LINK_PURPOSE, token, ask, now)

    def unseal_sign_in(self, token: str, ask: str, now: datetime) -> ApprovalLink | None:
        """Return the link to sign in with if it is valid for this request now, else None."""
        return self._unseal(_SIGN_IN_PURPOSE, token, ask, now)

    def _seal(self, purpose: str, link: ApprovalLink) -> str:
        until = str(int(link.expires_at.timestamp()))
        sealed = seal_token(self._key, purpose, link.ask, link.party, until, link.credential)
        # Many programs cut a sign off the end of an address in a text.
        return sealed.rstrip("=")

    def _unseal(self, purpose: str, token: str, ask: str, now: datetime) -> ApprovalLink | None:
        words = unseal_token(self._key, token + "=" * (-len(token) % 4))
        if words is None or len(words) != 5 or words[0] != purpose:
            return None
        _, named, party, until, credential = words
        link = ApprovalLink(named, party, datetime.fromtimestamp(int(until), UTC), credential)
        return link if link.ask == ask and link.expires_at > now else None


def sign_notice(secret: bytes, at: datetime, body: bytes) -> str:
    """Return the signature of a notice, which the receiver computes too."""
    moment = int(at.timestamp())
    signed = hmac.new(secret, b"%d." % moment + body, hashlib.sha256).hexdigest()
    return f"t={moment},v1={signed}"
