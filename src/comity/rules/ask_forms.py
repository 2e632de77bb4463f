"""How a question of ours is put to the client whose call waits for its answer. (MCP, both eras)

Rule 1: whoever may answer for itself is asked in its own client, by a form; anybody else is at most
        shown a page, where an authority answers. That a page was visited answers nothing.
Rule 2: what a form brings back counts only if it says what the form asked for; all else is refused.
Rule 3: what is read there was written by whoever calls: it has passed redaction, is bounded, and
        nothing in it can be unseen.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final, NamedTuple

from msgspec import Raw

from comity.rules.ask_words import in_full, one_line
from comity.rules.eras import ROUND, without
from comity.rules.phrases import start_sentence
from comity.rules.refusals import Refusal
from comity.rules.seals import seal, unseal
from comity.wire import jsonrpc, mcp
from comity.wire.asks import META, Ask, State, Verdict
from comity.wire.errors import DECLINED, INVALID_PARAMS, PENDING_APPROVAL, MalformedMessage
from comity.wire.jsonrpc import UNSET, Frame

KEY: Final = "approval"
"""What our one question of a round is called."""

DECISION: Final = "decision"
APPROVE: Final = "approve"
DECLINE: Final = "decline"
NOT_YOURS: Final = "requestState was given to somebody else; make the call again without it"
_OURS: Final = "ask"
_STEP: Final = 1e-6
"""How far our own news moves a client's progress: it may only grow, and the tool's is to come."""

_NOTHING: Final = Raw(b"{}")


class Mode(StrEnum):
    """How somebody is asked: in its own client, or by a page elsewhere."""

    FORM = "form"
    URL = "url"


@dataclass(frozen=True, slots=True)
class Brought:
    """What a client says to a question of ours; nothing where it only came back."""

    ask: str
    mode: Mode
    verdict: Verdict | None = None


class Way(NamedTuple):
    """How a call that waits can be approved: by whom, at which page, by which command."""

    who: str
    page: str
    command: str
    why_not_you: str = ""
    """For a person who could approve it, if it were somebody else's."""

    def __str__(self) -> str:
        said = f"{start_sentence(self.who)} can approve it at {self.page} or by {self.command}."
        return f"{said} You cannot: {self.why_not_you}." if self.why_not_you else said


def modes_in(capabilities: Mapping[str, Raw]) -> frozenset[Mode]:
    """In which ways a client with these capabilities can be asked."""
    try:
        terms = capabilities.get("elicitation")
        declared = None if terms is None else jsonrpc.members(terms)
    except MalformedMessage:
        return frozenset()
    if declared is None:
        return frozenset()
    # An empty declaration is that of a client from before there were modes.
    return frozenset(mode for mode in Mode if mode in (declared or {Mode.FORM}))


def message_of(ask: Ask) -> str:
    """What will run, in words for a person, without secrets."""
    said = f"{one_line(ask.message)}."
    risk, arguments = ask.about.get("risk"), ask.about.get("arguments")
    if risk is not None:
        said += f" Risk: {risk}."
    if arguments is not None:
        said += f" Arguments: {in_full(arguments)}"
    return said


def _meta(ask: Ask) -> dict[str, object]:
    """By what a client of ours knows a question or news of ours from a server's."""
    return {META: {"id": ask.id}}


def form_of(ask: Ask) -> dict[str, object]:
    """The question as a form with one field."""
    field = {
        "type": "string",
        "title": "Run it?",
        "description": "What you say is good for this one call.",
        "enum": [APPROVE, DECLINE],
    }
    schema = {"type": "object", "properties": {DECISION: field}, "required": [DECISION]}
    said = {"mode": Mode.FORM, "message": message_of(ask), "requestedSchema": schema}
    return {**said, "_meta": _meta(ask)}


def page_of(ask: Ask, url: str, who: str) -> dict[str, object]:
    """The page of an ask, to be shown: to open it answers nothing."""
    said = f"Comity holds this call. {start_sentence(who)} can approve it on this page."
    return {
        "mode": Mode.URL,
        "message": f"{said} {message_of(ask)}",
        "url": url,
        "_meta": _meta(ask),
    }


def verdict_in(mode: Mode, response: Raw) -> Verdict:
    """What an answer to a form says, or whether a page will be visited. Raises."""
    said = jsonrpc.members(response)
    action = jsonrpc.text(said.get("action"))
    if action not in (Verdict.ACCEPT, Verdict.DECLINE, Verdict.CANCEL):
        raise MalformedMessage("action is accept, decline or cancel", INVALID_PARAMS)
    if action != Verdict.ACCEPT or mode is Mode.URL:
        return Verdict(action)
    decision = jsonrpc.text(jsonrpc.members(said.get("content", _NOTHING)).get(DECISION))
    if decision not in (APPROVE, DECLINE):
        raise MalformedMessage(f"{DECISION} is {APPROVE} or {DECLINE}", INVALID_PARAMS)
    return Verdict.ACCEPT if decision == APPROVE else Verdict.DECLINE


def round_with(params: dict[str, object], state: str) -> dict[str, object]:
    """The question, as one of the two above, as a round of the modern era."""
    return {
        "resultType": mcp.INPUT_REQUIRED,
        "inputRequests": {KEY: {"method": mcp.ELICIT, "params": params}},
        "requestState": state,
    }


# What a client is told without being asked.


def token_in(frame: Frame) -> object | None:
    """By what a client wants to hear of progress, where it does."""
    try:
        meta = jsonrpc.members(jsonrpc.params_of(frame).get("_meta", _NOTHING))
        return jsonrpc.scalar(meta.get("progressToken"))
    except MalformedMessage:
        return None


def progress(token: object, step: int, ask: Ask, way: Way) -> Frame:
    """News that nothing has happened yet."""
    params = {
        "progressToken": token,
        "progress": step * _STEP,
        "message": waiting(ask, way),
        "_meta": _meta(ask),
    }
    return jsonrpc.notification(mcp.PROGRESS, params)


def waiting(ask: Ask, way: Way) -> str:
    """What is told of a call that waits."""
    return f"waiting for a person's approval (ask {ask.id}). {way}"


def pending(ask: Ask, way: Way, again: timedelta) -> Refusal:
    """What is told to whoever cannot wait any longer. The same call finds the answer."""
    return Refusal(
        PENDING_APPROVAL,
        f"this call waits for a person's approval (ask {ask.id}); nothing has run yet",
        again,
        suggestions=(
            "Make exactly the same call again: once it is approved, it runs.",
            f"{way}",
        ),
        details={
            "status": PENDING_APPROVAL.error_type,
            "ask_id": ask.id,
            "expires_at": ask.expires_at.isoformat(),
            "url": way.page,
        },
    )


def ended(ask: Ask) -> Refusal:
    """Why a call does not run whose ask has ended."""
    last = ask.answers[-1] if ask.answers else None
    because = f"nobody approved this call in time; it is {ask.state}"
    if ask.state in (State.DECLINED, State.CANCELLED) and last is not None:
        because = f"{last.by} declined this call" + (f": {last.reason}" if last.reason else "")
    elif ask.state is State.WITHDRAWN:
        because = "what was asked about is no longer to be had; make the call again"
    return Refusal(DECLINED, because, details={"ask_id": ask.id, "state": ask.state})


# What a client carries for us, and brings back.


def state_of(key: bytes, ask: Ask, party: str, mode: Mode) -> str:
    """Sealed words by which every node knows again which ask was put to whom, and how."""
    return seal(key, _OURS, ask.id, party, mode)


def taken_out(key: bytes, party: str, frame: Frame) -> tuple[Frame, Brought | None]:
    """A request without what it brings for us, and that; one with a server's own state stays.

    Raises where it was given to somebody else, or cannot be understood.
    """
    if frame.params is UNSET or b"requestState" not in bytes(frame.params):
        return frame, None
    params = jsonrpc.params_of(frame)
    words = unseal(key, jsonrpc.text(params.get("requestState")) or "")
    if words is None or len(words) != len((_OURS, "ask", "party", "mode")) or words[0] != _OURS:
        return frame, None
    _, ask, asked, mode = words
    if asked != party:
        raise MalformedMessage(NOT_YOURS, INVALID_PARAMS)
    responses = params.get("inputResponses", _NOTHING)
    response = jsonrpc.members(_NOTHING if bytes(responses) == b"null" else responses).get(KEY)
    verdict = None if response is None else verdict_in(Mode(mode), response)
    plain = jsonrpc.with_params(frame, jsonrpc.to_raw(without(params, ROUND)))
    return plain, Brought(ask, Mode(mode), verdict)
