"""Refusals, their wording for each protocol, and the advice for each error."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from typing import Final, cast

from msgspec import UNSET, Raw, UnsetType

from comity import errors
from comity.errors import (
    CUT_OFF,
    DECLINED,
    FAULT_OF_MGP,
    INTERRUPTED,
    INVALID_PARAMS,
    INVALID_TOOL_ARGS,
    MGP_CODES,
    PENDING_APPROVAL,
    TIMEOUT,
    UPSTREAM_FAILED,
    UPSTREAM_SLOW,
    Fault,
    MalformedMessage,
)
from comity.mcp import jsonrpc
from comity.mcp.framing import BACKSLASH
from comity.mcp.jsonrpc import ErrorBody, ExtendedFrame, Frame, Id, ToolCallParams
from comity.mcp.mgp import NegotiatedTerms
from comity.mcp.protocol import CALL_TOOL
from comity.toolkit.text import count_noun, start_sentence


@dataclass(frozen=True, slots=True)
class FaultHelp:
    """The cause of a fault, and the remedies, the best first."""

    cause: str
    suggestions: tuple[str, ...]


_PROTOCOL: Final[Mapping[Fault, FaultHelp]] = {
    errors.PARSE_ERROR: FaultHelp(
        "The message is no JSON, is nested too deeply, or names a member twice.",
        ("Send one JSON-RPC 2.0 message in UTF-8, without repeated members.",),
    ),
    errors.INVALID_REQUEST: FaultHelp(
        "The JSON is no request that can be taken here.",
        ("Compare the message with JSON-RPC 2.0 and with the transport's rules.",),
    ),
    errors.METHOD_NOT_FOUND: FaultHelp(
        "The method is unknown at this endpoint.",
        ("Use a method that was negotiated.", "Use the server's own endpoint for its own methods."),
    ),
    errors.INVALID_PARAMS: FaultHelp(
        "The parameters of a method other than a tool's own arguments are wrong.",
        ("Correct the parameter that the reason names.",),
    ),
    errors.INTERNAL_ERROR: FaultHelp(
        "A bug of the gateway's.",
        ("Give the operator the trace id; the log has the details.",),
    ),
    errors.RESOURCE_NOT_FOUND: FaultHelp(
        "No server that the caller may use has a resource at this URI.",
        ("List the resources again.",),
    ),
    errors.URL_ELICITATION_REQUIRED: FaultHelp(
        "The server needs a person to open a page first.",
        ("Open the URL that the error names, then call again.",),
    ),
    errors.HEADER_MISMATCH: FaultHelp(
        "A header of the request differs from its body.",
        ("Repeat the values of the body in the headers.",),
    ),
    errors.MISSING_CAPABILITY: FaultHelp(
        "The server needs input that this client did not declare support for.",
        ("Declare the capability that the reason names.",),
    ),
    errors.UNSUPPORTED_VERSION: FaultHelp(
        "The request has an unsupported MCP version.",
        ("Use one of the versions that the error lists.",),
    ),
    errors.EVENT_NOT_FOUND: FaultHelp(
        "The event does not exist, or the caller has no such subscription.",
        ("List what there is with events/list.",),
    ),
    errors.EVENTS_FORBIDDEN: FaultHelp(
        "The caller has no grant to have events posted there.",
        ("Ask for: comity grants create PRINCIPAL webhooks/HOST --verb events/subscribe.",),
    ),
    errors.MODE_UNSUPPORTED: FaultHelp(
        "This method does not deliver events in this way.",
        ("Use one of the ways that events/list names, with the method that it has.",),
    ),
    errors.CALLBACK_FAILED: FaultHelp(
        "The webhook receiver did not confirm the subscription.",
        ("Have it answer a post of type verification with 200 and the challenge.",),
    ),
}
_AUTHORITY: Final[Mapping[Fault, FaultHelp]] = {
    errors.UNAUTHENTICATED: FaultHelp(
        "The request has no credentials, or unknown ones.",
        (
            "Send a key or a token in the Authorization header.",
            "Ask the operator for a key: comity keys create.",
        ),
    ),
    errors.CREDENTIAL_EXPIRED: FaultHelp(
        "The key or token was good once.",
        ("Refresh the token.", "Ask the operator for a new key."),
    ),
    errors.PERMISSION_DENIED: FaultHelp(
        "The server of the tool lacks a permission.",
        ("Use another tool.", "Ask the operator to grant the server the permission."),
    ),
    errors.APPROVAL_REQUIRED: FaultHelp(
        "A person has to agree to this call, and did not yet.",
        ("Ask the operator to approve it or to grant the tool itself.",),
    ),
    errors.PENDING_APPROVAL: FaultHelp(
        "A person was asked whether this call may run, and has not answered yet.",
        ("Make exactly the same call again: once it is approved, it runs, and only once.",),
    ),
    errors.SIGN_IN_REQUIRED: FaultHelp(
        "The server wants a person to sign in, and no valid account is connected.",
        ("Sign in at the page that the answer names.", "Run comity accounts connect SERVER."),
    ),
    errors.DECLINED: FaultHelp(
        "A person denied the call.",
        ("Do not repeat the call; ask the person what to do instead.",),
    ),
    errors.ACCESS_DENIED: FaultHelp(
        "The caller has no grant for this name, or it does not exist.",
        (
            "List the tools: all listed tools can be called.",
            "Ask the operator for a grant: see comity grants explain.",
        ),
    ),
    errors.VALIDATION_BLOCKED: FaultHelp(
        "A validator of the gateway's found the arguments unsafe.",
        ("Change the argument that the reason names.", "Use a tool made for this purpose."),
    ),
    errors.CODE_UNSAFE: FaultHelp(
        "The code that the tool was to run is not allowed at its level of safety.",
        ("Rewrite the code without what the violations name.",),
    ),
}
_RESOURCES: Final[Mapping[Fault, FaultHelp]] = {
    errors.RATE_LIMITED: FaultHelp(
        "Too many calls in a short time, of the caller, its key, the tool or the server.",
        ("Wait for retry_after_ms, then call again.", "Make fewer calls."),
    ),
    errors.QUOTA_EXCEEDED: FaultHelp(
        "All calls of this day or month are used up.",
        ("Wait until the quota renews.", "Ask the operator for a larger quota."),
    ),
    errors.EXHAUSTED: FaultHelp(
        "The gateway or a server has as much to do as it can take.",
        ("Call again later, with longer and longer pauses.",),
    ),
    errors.TIMEOUT: FaultHelp(
        "The server took the call and did not answer before the deadline.",
        (
            "Check whether the tool has run before you call it again.",
            "Break the request into smaller parts.",
            "Ask the operator for a longer timeout.",
        ),
    ),
    errors.SERVER_NOT_READY: FaultHelp(
        "The tool's server is starting, or the gateway cannot reach it yet.",
        ("Call again in a moment.",),
    ),
    errors.SERVER_DRAINING: FaultHelp(
        "The server of the tool is draining and takes no new calls.",
        ("Call again when it is back.", "Use another tool."),
    ),
    errors.SERVER_RESTARTING: FaultHelp(
        "The tool's server is being started again.", ("Call again in a moment.",)
    ),
    errors.SERVER_STOPPED: FaultHelp(
        "The server of the tool is stopped, or failed to start too often.",
        ("Use another tool.", "Ask the operator to start it: comity servers start."),
    ),
    errors.POLICY_UNKNOWN: FaultHelp(
        "The gateway cannot read its grants, so it denies all calls.",
        ("Call again in a moment.",),
    ),
    errors.AUDIT_LOG_AWAY: FaultHelp(
        "The gateway cannot write its audit log, so it refuses calls that must be recorded.",
        ("Call again in a moment.",),
    ),
    errors.SECRETS_AWAY: FaultHelp(
        "A key service does not answer, so the gateway cannot read a stored credential.",
        (
            "Call again in a moment.",
            "Operators: `comity secrets check` shows which key service fails.",
        ),
    ),
    errors.CUT_OFF: FaultHelp(
        "This node cannot reach the other nodes, and the request needs them.",
        (
            "Call again in a moment; another node may answer at once.",
            "Operators: `/ready` shows whether a node is disconnected.",
        ),
    ),
}
_TOOLS: Final[Mapping[Fault, FaultHelp]] = {
    errors.INVALID_TOOL_ARGS: FaultHelp(
        "The arguments do not fit the tool's schema.",
        ("Correct the field that the reason names, and call again.",),
    ),
    errors.TOOL_NOT_FOUND: FaultHelp(
        "No server has a tool of that name.", ("List the tools again and use a listed name.",)
    ),
    errors.TOOL_DISABLED: FaultHelp(
        "The tool has changed since it was accepted, or was switched off.",
        ("Use another tool.", "Ask the operator to look at the tool and accept it."),
    ),
    errors.UPSTREAM_FAILED: FaultHelp(
        "The tool's server broke off, died or sent something broken.",
        ("Check whether the tool has run before you call it again.", "Use another tool."),
    ),
    errors.UPSTREAM_SLOW: FaultHelp(
        "The server of the tool, or a proxy in front of it, did not answer in time.",
        ("Check whether the tool has run before you call it again.",),
    ),
    errors.UPSTREAM_DOWN: FaultHelp(
        "The tool's server cannot be reached; the call never got there.",
        ("Call again in a moment.", "Use another tool."),
    ),
    errors.INTERRUPTED: FaultHelp(
        "The gateway is shutting down, and the call was not answered before.",
        ("Check whether the tool has run before you call it again.", "Connect again."),
    ),
}
_DOOR: Final[Mapping[Fault, FaultHelp]] = {
    errors.HOST_REFUSED: FaultHelp(
        "The Host header names another host.", ("Add the name to allowed_hosts.",)
    ),
    errors.ORIGIN_REFUSED: FaultHelp(
        "A web page of another origin called.", ("Add its origin to allowed_origins.",)
    ),
    errors.BODY_TOO_LARGE: FaultHelp(
        "The body is longer than limits.max_message_bytes.", ("Send less.",)
    ),
    errors.BODY_TOO_SLOW: FaultHelp(
        "The body did not arrive in time.", ("Send it again, faster.",)
    ),
    errors.WRONG_CONTENT_TYPE: FaultHelp(
        "The body is not declared as JSON.", ("Send content-type: application/json.",)
    ),
    errors.NOT_ACCEPTABLE: FaultHelp(
        "The Accept header leaves nothing that could be answered.",
        ("Accept application/json and text/event-stream.",),
    ),
    errors.SESSION_UNKNOWN: FaultHelp(
        "The session has ended, or was never here.", ("Begin again with initialize.",)
    ),
    errors.SCOPE_MISSING: FaultHelp(
        "The token is valid, but lacks a scope that this endpoint needs.",
        ("Request a token with the scope in the WWW-Authenticate header.",),
    ),
    errors.OPERATORS_ONLY: FaultHelp(
        "This endpoint is for operators.", ("Use a credential with admin grants.",)
    ),
    errors.JOINING_REFUSED: FaultHelp(
        "The topic is for those who were granted something in it.",
        ("Ask an operator: comity topics capabilities set TOPIC PRINCIPAL --add chat.",),
    ),
    errors.NOTHING_HERE: FaultHelp("The path leads nowhere.", ("Use /mcp or /servers/{id}/mcp.",)),
    errors.ALREADY_EXISTS: FaultHelp(
        "A user, a group or a principal with this name exists.",
        ("Use another name.", "Ask an operator to delete the principal: comity principals."),
    ),
    errors.INVALID_FILTER: FaultHelp(
        "The SCIM filter is not supported.", ('Compare one attribute, as userName eq "ana".',)
    ),
}
_MODELS: Final[Mapping[Fault, FaultHelp]] = {
    errors.BUDGET_EXCEEDED: FaultHelp(
        "All that may be spent on models today is spent, or would be.",
        ("Wait until the next day (UTC).", "Ask for less: a shorter prompt, fewer tokens."),
    ),
    errors.MODEL_REFUSED: FaultHelp(
        "The model refused the request, or sent an invalid reply.",
        ("Ask for something else, or for less.", "Ask the operator: comity models test ID TEXT."),
    ),
    errors.NO_MODEL: FaultHelp(
        "No model is configured for this request.",
        ("Ask the operator for one in [[models]], or for a route to it.",),
    ),
    errors.HOOK_LOOP: FaultHelp(
        "A model was asked for from within a hook of the same server.",
        ("Send the request after the answer to the hook.",),
    ),
}
_MCPL: Final[Mapping[Fault, FaultHelp]] = {
    errors.FEATURE_NOT_ENABLED: FaultHelp(
        "The feature set is declared and not switched on.", ("Wait for featureSets/update.",)
    ),
    errors.FEATURE_UNKNOWN: FaultHelp(
        "The feature set was never declared.", ("Declare it in initialize.",)
    ),
    errors.CHECKPOINT_UNKNOWN: FaultHelp(
        "There is no such checkpoint.", ("Use one that state/rollback can still reach.",)
    ),
    errors.SCOPE_NOT_PERMITTED: FaultHelp(
        "The scope or channel is not granted.", ("Use another one, or ask for it.",)
    ),
    errors.CHANNEL_UNKNOWN: FaultHelp("There is no such channel.", ("List the channels again.",)),
    errors.CHANNEL_NOT_OPENED: FaultHelp(
        "The channel could not be opened.", ("Try again later, or use another one.",)
    ),
}

ADVICE: Final[Mapping[Fault, FaultHelp]] = (
    dict(_PROTOCOL) | _AUTHORITY | _RESOURCES | _TOOLS | _DOOR | _MODELS | _MCPL
)


def suggestions_for(fault: Fault) -> tuple[str, ...]:
    """Return the remedies for a fault without further information."""
    found = ADVICE.get(fault)
    return () if found is None else found.suggestions


REFUSAL_KEY: Final = "dev.comity/refusal"
"""The member of `_meta` with the refusal body. Not `structuredContent`, because clients check that

against the schema of the tool, even for errors.
"""

FIRST_PAUSE: Final = timedelta(seconds=1)
MAX_RETRIES: Final = 3
MAX_KEPT_BYTES: Final = 16 * 1024
MAX_PAUSE_MS: Final = 24 * 3600 * 1000
"""The longest wait that Comity accepts from a server."""

PAGE: Final = "reference/errors/"
"""The documentation page with a section for every fault."""

_PUBLIC_DETAILS: Final = ("tool_name", "timeout_ms")
_RECOVERY: Final = frozenset(
    {"retryable", "retry_after_ms", "retry_strategy", "max_retries", "fallback_tool", "details"}
)
_LEAVE_IN_DOUBT: Final = frozenset({INTERRUPTED, TIMEOUT, UPSTREAM_FAILED, UPSTREAM_SLOW, CUT_OFF})
_TRACEPARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")
_TRACE: Final = re.compile(r"[0-9a-f]{32}")
_NO_TRACE: Final = "0" * 32


_NO_DETAILS: Final[Mapping[str, object]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class RegistryContext:
    """A request to the registry API. `documentation` is the operator's address of the docs."""

    documentation: str = ""


@dataclass(frozen=True, slots=True)
class RefusedRequest:
    """The refused request, as far as the wording depends on it.

    `sent` is whether its server may have received it. `idempotent` is whether an operator declared
    that a second call of this tool does no harm.
    """

    id: Id
    method: str
    terms: NegotiatedTerms | None = None
    modern: bool = False
    sent: bool = False
    idempotent: bool = False
    registry: RegistryContext | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request failed, and what may help.

    `retry_after` is the known wait. `field` is the wrong argument, as a path or a JSON pointer.
    `details` are for programs. `body` is a separate document for a model, beside the reason (MGP
    §7.4). `fallback_tool` is a tool that the operator named.
    """

    fault: Fault
    reason: str
    retry_after: timedelta | None = None
    field: str = ""
    suggestions: tuple[str, ...] = ()
    details: Mapping[str, object] = _NO_DETAILS
    body: Mapping[str, object] = _NO_DETAILS
    fallback_tool: str = ""
    documentation_url: str = ""


def refusal_response(request: RefusedRequest, refusal: Refusal, trace_id: str) -> Frame:
    """Return the response to a refused request."""
    fault, reason = refusal.fault, refusal.reason
    if request.registry is not None:
        return _error(request.id, fault.reg, reason, _at_registry(request, refusal, trace_id))
    body: dict[str, object] = {
        "error_type": fault.error_type,
        "reason": reason,
        "trace_id": trace_id,
        **_optional_members(refusal),
    }
    recovery = _recovery(request, refusal)
    if request.terms is not None:
        category = "validation" if fault.category == "protocol" else fault.category
        body["_mgp"] = {"category": category, **recovery}
        code = fault.code if fault.mgp is None else fault.mgp
        return _error(request.id, code, reason, body)
    body |= recovery
    if fault.in_result and request.method == CALL_TOOL:
        said = f"{reason.rstrip('.')}. {_advice(request, refusal)} (trace {trace_id})"
        result = _result(request, start_sentence(said), body, refusal.body)
        return jsonrpc.make_result(request.id, result)
    return _error(request.id, fault.code, reason, body)


def _at_registry(request: RefusedRequest, refusal: Refusal, trace_id: str) -> dict[str, object]:
    """Return the error fields of the registry API, with the same recovery as elsewhere."""
    fault = refusal.fault
    data: dict[str, object] = {
        "error_type": fault.reg_type,
        "reason": refusal.reason,
        "trace_id": trace_id,
        **_optional_members(refusal),
        "suggestions": list(refusal.suggestions or suggestions_for(fault)),
    }
    documentation = request.registry.documentation if request.registry is not None else ""
    if documentation and "documentation_url" not in data:
        data["documentation_url"] = f"{documentation.rstrip('/')}/{PAGE}#{fault.error_type}"
    # The members of the example in the document: the name of a tool, and the time waited.
    named = {key: refusal.details[key] for key in _PUBLIC_DETAILS if key in refusal.details}
    return {**data, **named, **_recovery(request, refusal)}


def _optional_members(refusal: Refusal) -> dict[str, object]:
    """Return the members that only some refusals have."""
    said: dict[str, object] = {}
    if refusal.field:
        said["field"] = refusal.field
    if refusal.suggestions:
        said["suggestions"] = list(refusal.suggestions)
    if refusal.documentation_url:
        said["documentation_url"] = refusal.documentation_url
    return said


def to_plain_mcp_error(request: RefusedRequest, frame: Frame) -> Frame:
    """Return a server's error for a client of plain MCP. Only errors of MGP change.

    A shared server speaks MGP with the gateway, whichever client calls.
    """
    error = jsonrpc.error_of(frame)
    if error is None or error.code not in MGP_CODES:
        return frame
    data = _members(error.data)
    recovery = _members(data.pop("_mgp", None))
    if not recovery:
        return frame
    fault = FAULT_OF_MGP.get(error.code, UPSTREAM_FAILED)
    kind = fault.error_type if error.code in FAULT_OF_MGP else f"mgp_{error.code}"
    advised = {name: value for name, value in recovery.items() if name in _RECOVERY}
    body: dict[str, object] = {"error_type": kind, "reason": error.message, **data, **advised}
    if fault.in_result and request.method == CALL_TOOL:
        return jsonrpc.make_result(request.id, _result(request, error.message, body))
    return _error(request.id, fault.code, error.message, body)


def of_server(frame: Frame) -> Refusal:
    """Return a server's error as a refusal, for clients that do not know its error codes."""
    error = jsonrpc.error_of(frame)
    assert error is not None
    data = _members(error.data)
    recovery = _members(data.pop("_mgp", None))
    fault = UPSTREAM_FAILED
    if error.code == INVALID_PARAMS.code:
        fault = INVALID_TOOL_ARGS
    elif recovery:
        fault = FAULT_OF_MGP.get(error.code, UPSTREAM_FAILED)
    after = recovery.get("retry_after_ms")
    known = isinstance(after, int | float) and 0 <= after < MAX_PAUSE_MS
    details = _members(recovery.get("details"))
    pause = timedelta(milliseconds=after) if known else None  # type: ignore[arg-type]  # a number if known
    return Refusal(fault, error.message, pause, details=details)


def may_name_trace(params: Raw) -> bool:
    """Return whether parameters may hold a trace id. An escape could hide its name."""
    plain = bytes(params)
    return b"trace" in plain or BACKSLASH in plain


def trace_of(params: Raw | UnsetType) -> str | None:
    """Return the trace id in a request's parameters, as 32 hexadecimal digits. (D-33)"""
    if params is not UNSET and not may_name_trace(params):
        return None
    try:
        found = {} if params is UNSET else jsonrpc.decode_members(params)
        meta = jsonrpc.decode_members(found["_meta"]) if "_meta" in found else {}
        parent = _TRACEPARENT.fullmatch(jsonrpc.decode_text(meta.get("traceparent")) or "")
        return normalize_trace_id(
            parent[1] if parent else jsonrpc.decode_text(found.get("trace_id"))
        )
    except MalformedMessage:
        return None


def trace_beside(frame: Frame) -> str | None:
    """Return the trace id beside the parameters of a request, if they have none. (D-33)"""
    try:
        beside = frame.members.get("trace_id") if isinstance(frame, ExtendedFrame) else None
        return trace_of(frame.params) or normalize_trace_id(jsonrpc.decode_text(beside))
    except MalformedMessage:
        return None


def normalize_trace_id(text: str | None) -> str | None:
    """Return a trace id, usually a UUID, as 32 hexadecimal digits, or None for any other text."""
    trace = (text or "").lower().replace("-", "")
    return trace if _TRACE.fullmatch(trace) and trace != _NO_TRACE else None


def trim_params(params: Raw | UnsetType) -> Raw | UnsetType:
    """Return the parameters that a refusal may need. Long arguments are not kept for it."""
    if params is UNSET or len(params) <= MAX_KEPT_BYTES:
        return params
    try:
        found = jsonrpc.decode_members(params)
    except MalformedMessage:
        return UNSET
    named = {key: found[key] for key in ("_meta", "trace_id") if key in found}
    small = {key: said for key, said in named.items() if len(said) <= MAX_KEPT_BYTES}
    return jsonrpc.to_raw(small) if small else UNSET


def trim_tool_params(tool: ToolCallParams) -> Raw | UnsetType:
    """Return the same for a plain tool call."""
    if tool.meta is UNSET or len(tool.meta) > MAX_KEPT_BYTES:
        return UNSET
    return Raw(b'{"_meta":%b}' % bytes(tool.meta))


def _recovery(request: RefusedRequest, refusal: Refusal) -> dict[str, object]:
    """Return whether and when a retry may help, and what else may. (MGP §14.5)"""
    fault = refusal.fault
    told: dict[str, object] = {}
    if request.method == CALL_TOOL:
        told["outcome"] = "unknown" if _is_in_doubt(request, fault) else "not_run"
    if fault is DECLINED:
        told["reason"] = fault.error_type
    told |= {**refusal.details, **refusal.body}
    details: dict[str, object] = {"details": told} if told else {}
    if refusal.fallback_tool:
        details = {"fallback_tool": refusal.fallback_tool, **details}
    if not _may_be_repeated(request, fault):
        return {"retryable": False, **details}
    pause = FIRST_PAUSE if refusal.retry_after is None else refusal.retry_after
    return {
        "retryable": True,
        "retry_after_ms": _milliseconds(pause),
        "retry_strategy": "exponential_backoff" if refusal.retry_after is None else "fixed_delay",
        "max_retries": MAX_RETRIES,
        **details,
    }


def _may_be_repeated(request: RefusedRequest, fault: Fault) -> bool:
    return fault.retryable and (request.idempotent or not _is_in_doubt(request, fault))


def _is_in_doubt(request: RefusedRequest, fault: Fault) -> bool:
    return request.sent and request.method == CALL_TOOL and fault in _LEAVE_IN_DOUBT


def _result(
    request: RefusedRequest,
    text: str,
    body: dict[str, object],
    document: Mapping[str, object] = _NO_DETAILS,
) -> dict[str, object]:
    content = [{"type": "text", "text": text}]
    if document:
        content.append({"type": "text", "text": bytes(jsonrpc.to_raw(dict(document))).decode()})
    result: dict[str, object] = {
        "content": content,
        "isError": True,
        "_meta": {REFUSAL_KEY: body},
    }
    return {"resultType": "complete", **result} if request.modern else result


def _advice(request: RefusedRequest, refusal: Refusal) -> str:
    """Return what to do next, for a model and for the person who reads along."""
    else_ = " ".join(refusal.suggestions)
    if refusal.fallback_tool:
        else_ = f"{else_} The tool {refusal.fallback_tool} may help instead.".strip()
    return f"{_when(request, refusal)} {else_}".rstrip()


def _when(request: RefusedRequest, refusal: Refusal) -> str:
    if refusal.fault is PENDING_APPROVAL:
        # When to call again depends on a person, so the suggestions say it.
        return "The tool has not run."
    in_doubt = _is_in_doubt(request, refusal.fault)
    if not _may_be_repeated(request, refusal.fault):
        if in_doubt:
            return "The tool may have run. Check this before you call it again."
        return "The tool was not run. Retrying the same call will fail again."
    ran = (
        "The tool may have run, but it can be called twice" if in_doubt else "The tool did not run"
    )
    if refusal.retry_after is None:
        return f"{ran}; calling it again in a moment may help."
    return f"{ran}; call it again in {_wait_text(refusal.retry_after)} at the earliest."


def _wait_text(length: timedelta) -> str:
    """Return a wait in words, rounded up."""
    seconds = length.total_seconds()
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds > 2 * size:
            return count_noun(math.ceil(seconds / size), unit)
    return count_noun(math.ceil(seconds * 100) / 100, "second")


def _members(value: object) -> dict[str, object]:
    return {**cast("dict[str, object]", value)} if isinstance(value, dict) else {}


def _error(request_id: Id, code: int, reason: str, body: dict[str, object]) -> Frame:
    return Frame("2.0", request_id, error=jsonrpc.to_raw(ErrorBody(code, reason, body)))


def _milliseconds(length: timedelta) -> int:
    return max(0, round(length / timedelta(milliseconds=1)))
