"""The messages that ask a client, in both protocol versions."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final, NamedTuple

from msgspec import Raw

from comity.approvals.model import (
    META_KEY,
    ApprovalDecision,
    ApprovalKind,
    ApprovalRequest,
    ApprovalState,
)
from comity.approvals.presentation import indented_json, one_line
from comity.errors import DECLINED, INVALID_PARAMS, PENDING_APPROVAL, MalformedMessage
from comity.mcp import jsonrpc, protocol
from comity.mcp.eras import ROUND, omit_members
from comity.mcp.jsonrpc import UNSET, Frame
from comity.mcp.refusals import Refusal
from comity.toolkit.sealed_tokens import seal_token, unseal_token
from comity.toolkit.text import start_sentence

INPUT_KEY: Final = "approval"
"""The name of Comity's one question in a round."""

DECISION_FIELD: Final = "decision"
APPROVE_VALUE: Final = "approve"
DECLINE_VALUE: Final = "decline"
OTHER_PRINCIPAL_TEXT: Final = (
    "requestState belongs to another client; make the call again without it"
)
_STATE_PURPOSE: Final = "ask"
_SIGN_IN_PURPOSE: Final = "sign-in"
_PROGRESS_STEP: Final = 1e-6
"""The progress step of Comity's notifications. It is tiny: the tool's own must be greater."""

_NOTHING: Final = Raw(b"{}")


class PromptMode(StrEnum):
    """How a client prompts a person: by a form in the client, or by a page."""

    FORM = "form"
    URL = "url"


@dataclass(frozen=True, slots=True)
class PromptReply:
    """A client's reply to a prompt. It has no verdict if the client only repeated the call."""

    ask: str
    mode: PromptMode
    verdict: ApprovalDecision | None = None
    is_sign_in: bool = False
    """Whether the client showed the page of a sign-in, which says nothing about the call."""


class ApprovalInstructions(NamedTuple):
    """How a pending call can be approved: by whom, at which page, by which command."""

    who: str
    page: str
    command: str
    refusal_reason: str = ""
    """Why the asker, who is an approver of other requests, cannot approve its own."""
    action: str = "approve it"

    def __str__(self) -> str:
        can = f"{start_sentence(self.who)} can {self.action}"
        said = f"{can} at {self.page} or by {self.command}."
        return f"{said} You cannot: {self.refusal_reason}." if self.refusal_reason else said


def declared_modes(capabilities: Mapping[str, Raw]) -> frozenset[PromptMode]:
    """Return the modes of elicitation that a client declares."""
    try:
        terms = capabilities.get("elicitation")
        declared = None if terms is None else jsonrpc.decode_members(terms)
    except MalformedMessage:
        return frozenset()
    if declared is None:
        return frozenset()
    # Clients from before there were modes declare an empty object.
    return frozenset(mode for mode in PromptMode if mode in (declared or {PromptMode.FORM}))


def prompt_text(request: ApprovalRequest) -> str:
    """Describe what will run, without secrets."""
    said = f"{one_line(request.message)}."
    risk, arguments = request.about.get("risk"), request.about.get("arguments")
    if risk is not None:
        said += f" Risk: {risk}."
    if arguments is not None:
        said += f" Arguments: {indented_json(arguments)}"
    return said


def _gateway_meta(request: ApprovalRequest) -> dict[str, object]:
    """Mark a message of the gateway, so that a client can tell it from a server's."""
    return {META_KEY: {"id": request.id}}


def form_elicitation(request: ApprovalRequest) -> dict[str, object]:
    """Return the elicitation form, which has one field."""
    field = {
        "type": "string",
        "title": "Run it?",
        "description": "Your answer applies to this call only.",
        "enum": [APPROVE_VALUE, DECLINE_VALUE],
    }
    schema = {"type": "object", "properties": {DECISION_FIELD: field}, "required": [DECISION_FIELD]}
    said = {"mode": PromptMode.FORM, "message": prompt_text(request), "requestedSchema": schema}
    return {**said, "_meta": _gateway_meta(request)}


def page_elicitation(request: ApprovalRequest, url: str, who: str) -> dict[str, object]:
    """Return the elicitation that shows a page. Opening the page answers nothing."""
    action = "sign in" if request.kind is ApprovalKind.SIGN_IN else "approve it"
    said = f"Comity holds this call. {start_sentence(who)} can {action} on this page."
    return {
        "mode": PromptMode.URL,
        "message": f"{said} {prompt_text(request)}",
        "url": url,
        "_meta": _gateway_meta(request),
    }


def decision_in(mode: PromptMode, response: Raw) -> ApprovalDecision:
    """Return the decision in a reply to a form or a page. Raises MalformedMessage."""
    said = jsonrpc.decode_members(response)
    action = jsonrpc.decode_text(said.get("action"))
    if action not in (ApprovalDecision.ACCEPT, ApprovalDecision.DECLINE, ApprovalDecision.CANCEL):
        raise MalformedMessage("action is accept, decline or cancel", INVALID_PARAMS)
    if action != ApprovalDecision.ACCEPT or mode is PromptMode.URL:
        return ApprovalDecision(action)
    decision = jsonrpc.decode_text(
        jsonrpc.decode_members(said.get("content", _NOTHING)).get(DECISION_FIELD)
    )
    if decision not in (APPROVE_VALUE, DECLINE_VALUE):
        raise MalformedMessage(
            f"{DECISION_FIELD} is {APPROVE_VALUE} or {DECLINE_VALUE}", INVALID_PARAMS
        )
    return ApprovalDecision.ACCEPT if decision == APPROVE_VALUE else ApprovalDecision.DECLINE


def input_required_result(params: dict[str, object], state: str) -> dict[str, object]:
    """Return the `input_required` result with a form or a page."""
    return {
        "resultType": protocol.INPUT_REQUIRED,
        "inputRequests": {INPUT_KEY: {"method": protocol.ELICIT, "params": params}},
        "requestState": state,
    }


# Notices to a client.


def progress_token_in(frame: Frame) -> object | None:
    """Return the progress token of a request, or None if there is none."""
    try:
        meta = jsonrpc.decode_members(frame.parameters.get("_meta", _NOTHING))
        return jsonrpc.decode_scalar(meta.get("progressToken"))
    except MalformedMessage:
        return None


def waiting_progress(
    token: object, step: int, request: ApprovalRequest, instructions: ApprovalInstructions
) -> Frame:
    """Return the progress notification of a pending call."""
    params = {
        "progressToken": token,
        "progress": step * _PROGRESS_STEP,
        "message": describe_wait(request, instructions),
        "_meta": _gateway_meta(request),
    }
    return jsonrpc.make_notification(protocol.PROGRESS, params)


def describe_wait(request: ApprovalRequest, instructions: ApprovalInstructions) -> str:
    """Describe that a call waits, and how it can be approved."""
    return f"waiting for {_awaited(request)} (request {request.id}). {instructions}"


def _awaited(request: ApprovalRequest) -> str:
    is_sign_in = request.kind is ApprovalKind.SIGN_IN
    return f"a sign-in to {request.server!r}" if is_sign_in else "approval"


REPEAT_AFTER: Final = timedelta(seconds=1)
_REPEAT_ADVICE: Final = (
    "Make exactly the same call again, at once if you like: it waits again, and runs"
)


def pending_refusal(request: ApprovalRequest, instructions: ApprovalInstructions) -> Refusal:
    """Return the refusal of a call that is still pending. The same call finds the answer."""
    return Refusal(
        PENDING_APPROVAL,
        f"this call waits for {_awaited(request)} (request {request.id})",
        # The same call waits again, so a client loses nothing by making it at once.
        REPEAT_AFTER,
        suggestions=(
            f"{instructions}",
            f"{_REPEAT_ADVICE} once the person has signed in."
            if request.kind is ApprovalKind.SIGN_IN
            else f"{_REPEAT_ADVICE} once it is approved.",
        ),
        details={
            "status": PENDING_APPROVAL.error_type,
            "approval_id": request.id,
            "expires_at": request.expires_at.isoformat(),
            "url": instructions.page,
        },
    )


def ended_refusal(request: ApprovalRequest) -> Refusal:
    """Return the refusal of a call whose request has ended."""
    last = request.answers[-1] if request.answers else None
    reason = f"this call was not approved in time; the request is {request.state}"
    if request.state in (ApprovalState.DENIED, ApprovalState.CANCELLED) and last is not None:
        reason = f"{last.by} declined this call" + (f": {last.reason}" if last.reason else "")
    elif request.state is ApprovalState.WITHDRAWN:
        reason = "the call is no longer possible as requested; make it again"
    return Refusal(DECLINED, reason, details={"approval_id": request.id, "state": request.state})


# The state that a client carries for us.


def seal_state(key: bytes, request: ApprovalRequest, party: str, mode: PromptMode) -> str:
    """Return the sealed state that names the request, the principal and the mode."""
    is_sign_in = request.kind is ApprovalKind.SIGN_IN
    purpose = _SIGN_IN_PURPOSE if is_sign_in else _STATE_PURPOSE
    return seal_token(key, purpose, request.id, party, mode)


def extract_reply(key: bytes, party: str, frame: Frame) -> tuple[Frame, PromptReply | None]:
    """Return a request without Comity's state and reply, and the reply, or None if it has none.

    Raises where the state is of another principal, or the reply is malformed.
    """
    if frame.params is UNSET or b"requestState" not in bytes(frame.params):
        return frame, None
    params = frame.parameters
    words = unseal_token(key, jsonrpc.decode_text(params.get("requestState")) or "")
    if (
        words is None
        or len(words) != len((_STATE_PURPOSE, "ask", "party", "mode"))
        or words[0] not in (_STATE_PURPOSE, _SIGN_IN_PURPOSE)
    ):
        return frame, None
    purpose, ask, asked, mode = words
    if asked != party:
        raise MalformedMessage(OTHER_PRINCIPAL_TEXT, INVALID_PARAMS)
    responses = params.get("inputResponses", _NOTHING)
    response = jsonrpc.decode_members(_NOTHING if bytes(responses) == b"null" else responses).get(
        INPUT_KEY
    )
    verdict = None if response is None else decision_in(PromptMode(mode), response)
    plain = jsonrpc.with_params(frame, jsonrpc.to_raw(omit_members(params, ROUND)))
    return plain, PromptReply(ask, PromptMode(mode), verdict, purpose == _SIGN_IN_PURPOSE)
