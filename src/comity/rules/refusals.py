"""How a refusal is worded for whoever asked: one place for every fault and every link. (MGP §14)

Rule 1: on a link that negotiated MGP a refusal is an error with MGP's number and recovery fields.
Rule 2: on a plain link a tool call that failed on its way is answered by a result that a model can
        read, since clients show a model results and seldom errors; all else by a JSON-RPC error.
Rule 3: at the registry's face it is an error with the registry's number, name and fields.
Rule 4: whatever the form, what is said is the same: the kind of fault, the reason, the trace, and
        whether, when and how to ask again.
Rule 5: a tool that may have run is never said to be worth calling again, unless its operator said
        that calling it twice is harmless. (D-78)
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from typing import Final, cast

from msgspec import UNSET, Raw, UnsetType

from comity.rules.advice import suggestions_for
from comity.rules.negotiation import Terms
from comity.rules.phrases import count_noun, start_sentence
from comity.wire import jsonrpc
from comity.wire.errors import (
    CUT_OFF,
    DECLINED,
    FAULT_OF_MGP,
    INTERRUPTED,
    INVALID_PARAMS,
    INVALID_TOOL_ARGS,
    MGP_CODES,
    TIMEOUT,
    UPSTREAM_FAILED,
    UPSTREAM_SLOW,
    Fault,
    MalformedMessage,
)
from comity.wire.jsonrpc import ErrorBody, Frame, FrameWithMembers, Id
from comity.wire.mcp import CALL_TOOL

REFUSAL_KEY: Final = "dev.comity/refusal"
"""Where a result holds the body. Not `structuredContent`: clients check that against the tool's own
schema, of errors too."""

FIRST_PAUSE: Final = timedelta(seconds=1)
MOST_RETRIES: Final = 3
MOST_KEPT_BYTES: Final = 16 * 1024
MOST_PAUSE_MS: Final = 24 * 3600 * 1000
"""The longest wait that a server is believed to want."""

PAGE: Final = "reference/errors/"
"""Where among the docs every fault has its place, under its name."""

_TOLD_OPENLY: Final = ("tool_name", "timeout_ms")
_RECOVERY: Final = frozenset(
    {"retryable", "retry_after_ms", "retry_strategy", "max_retries", "fallback_tool", "details"}
)
_LEAVE_IN_DOUBT: Final = frozenset({INTERRUPTED, TIMEOUT, UPSTREAM_FAILED, UPSTREAM_SLOW, CUT_OFF})
_TRACEPARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")
_TRACE: Final = re.compile(r"[0-9a-f]{32}")
_NO_TRACE: Final = "0" * 32


_NOTHING: Final[Mapping[str, object]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class AtRegistry:
    """A request at the registry's face; `documentation` is where its operator has our docs."""

    documentation: str = ""


@dataclass(frozen=True, slots=True)
class Asked:
    """The request that is refused, as far as the wording depends on it.

    `sent` is whether its server may have got it, `idempotent` whether an operator said that this
    tool can be called twice without harm.
    """

    id: Id
    method: str
    terms: Terms | None = None
    modern: bool = False
    sent: bool = False
    idempotent: bool = False
    registry: AtRegistry | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request was not done, and what may help.

    `retry_after` is how long to wait, where that is known; `field` the argument that is wrong, as a
    path or a JSON pointer; `details` are for programs. `body` is a document of its own that a model
    gets beside the reason (MGP §7.4). `fallback_tool` is one that the operator named.
    """

    fault: Fault
    because: str
    retry_after: timedelta | None = None
    field: str = ""
    suggestions: tuple[str, ...] = ()
    details: Mapping[str, object] = _NOTHING
    body: Mapping[str, object] = _NOTHING
    fallback_tool: str = ""
    documentation_url: str = ""


def word(asked: Asked, refusal: Refusal, trace_id: str) -> Frame:
    """The one answer to a request that was not done."""
    fault, because = refusal.fault, refusal.because
    if asked.registry is not None:
        return _error(asked.id, fault.reg, because, _at_registry(asked, refusal, trace_id))
    body: dict[str, object] = {
        "error_type": fault.error_type,
        "reason": because,
        "trace_id": trace_id,
        **_said_of(refusal),
    }
    recovery = _recovery(asked, refusal)
    if asked.terms is not None:
        category = "validation" if fault.category == "protocol" else fault.category
        body["_mgp"] = {"category": category, **recovery}
        code = fault.code if fault.mgp is None else fault.mgp
        return _error(asked.id, code, because, body)
    body |= recovery
    if fault.in_result and asked.method == CALL_TOOL:
        said = f"{because.rstrip('.')}. {_advice(asked, refusal)} (trace {trace_id})"
        result = _result(asked, start_sentence(said), body, refusal.body)
        return jsonrpc.result(asked.id, result)
    return _error(asked.id, fault.code, because, body)


def _at_registry(asked: Asked, refusal: Refusal, trace_id: str) -> dict[str, object]:
    """The registry's fields, and beside them the same recovery as everybody is told."""
    fault = refusal.fault
    data: dict[str, object] = {
        "error_type": fault.reg_type,
        "reason": refusal.because,
        "trace_id": trace_id,
        **_said_of(refusal),
        "suggestions": list(refusal.suggestions or suggestions_for(fault)),
    }
    documentation = asked.registry.documentation if asked.registry is not None else ""
    if documentation and "documentation_url" not in data:
        data["documentation_url"] = f"{documentation.rstrip('/')}/{PAGE}#{fault.error_type}"
    # What the document's own example has beside these: a tool's name, and how long was waited.
    named = {key: refusal.details[key] for key in _TOLD_OPENLY if key in refusal.details}
    return {**data, **named, **_recovery(asked, refusal)}


def _said_of(refusal: Refusal) -> dict[str, object]:
    """What is said of some refusals only."""
    said: dict[str, object] = {}
    if refusal.field:
        said["field"] = refusal.field
    if refusal.suggestions:
        said["suggestions"] = list(refusal.suggestions)
    if refusal.documentation_url:
        said["documentation_url"] = refusal.documentation_url
    return said


def in_plain_words(asked: Asked, frame: Frame) -> Frame:
    """A server's error, as a client of plain MCP may hear it; any but one of MGP stays as it is.

    A server that several clients share speaks MGP with the gateway, whoever calls.
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
    if fault.in_result and asked.method == CALL_TOOL:
        return jsonrpc.result(asked.id, _result(asked, error.message, body))
    return _error(asked.id, fault.code, error.message, body)


def of_server(frame: Frame) -> Refusal:
    """A server's error as a refusal of ours, for those who know none of its numbers."""
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
    known = isinstance(after, int | float) and 0 <= after < MOST_PAUSE_MS
    details = _members(recovery.get("details"))
    pause = timedelta(milliseconds=after) if known else None  # type: ignore[arg-type]  # a number if known
    return Refusal(fault, error.message, pause, details=details)


def trace_of(params: Raw | UnsetType) -> str | None:
    """The trace that a request says it is part of, as 32 hexadecimal digits. (D-33)"""
    try:
        found = {} if params is UNSET else jsonrpc.members(params)
        meta = jsonrpc.members(found["_meta"]) if "_meta" in found else {}
        parent = _TRACEPARENT.fullmatch(jsonrpc.text(meta.get("traceparent")) or "")
        return trace_named(parent[1] if parent else jsonrpc.text(found.get("trace_id")))
    except MalformedMessage:
        return None


def trace_beside(frame: Frame) -> str | None:
    """The trace that is named beside the parameters of a request, where none is in them. (D-33)"""
    try:
        beside = frame.members.get("trace_id") if isinstance(frame, FrameWithMembers) else None
        return trace_of(frame.params) or trace_named(jsonrpc.text(beside))
    except MalformedMessage:
        return None


def trace_named(said: str | None) -> str | None:
    """What names a trace, a UUID as a rule, as 32 hexadecimal digits; nothing else names one."""
    trace = (said or "").lower().replace("-", "")
    return trace if _TRACE.fullmatch(trace) and trace != _NO_TRACE else None


def kept(params: Raw | UnsetType) -> Raw | UnsetType:
    """What of a request's parameters its refusal may need; long arguments are not held for it."""
    if params is UNSET or len(params) <= MOST_KEPT_BYTES:
        return params
    try:
        found = jsonrpc.members(params)
    except MalformedMessage:
        return UNSET
    named = {key: found[key] for key in ("_meta", "trace_id") if key in found}
    small = {key: said for key, said in named.items() if len(said) <= MOST_KEPT_BYTES}
    return jsonrpc.to_raw(small) if small else UNSET


def _recovery(asked: Asked, refusal: Refusal) -> dict[str, object]:
    """Whether asking again may help, when, and what else might. (MGP §14.5)"""
    fault = refusal.fault
    told: dict[str, object] = {}
    if asked.method == CALL_TOOL:
        told["outcome"] = "unknown" if _is_in_doubt(asked, fault) else "not_run"
    if fault is DECLINED:
        told["reason"] = fault.error_type
    told |= {**refusal.details, **refusal.body}
    details: dict[str, object] = {"details": told} if told else {}
    if refusal.fallback_tool:
        details = {"fallback_tool": refusal.fallback_tool, **details}
    if not _may_be_repeated(asked, fault):
        return {"retryable": False, **details}
    pause = FIRST_PAUSE if refusal.retry_after is None else refusal.retry_after
    return {
        "retryable": True,
        "retry_after_ms": _milliseconds(pause),
        "retry_strategy": "exponential_backoff" if refusal.retry_after is None else "fixed_delay",
        "max_retries": MOST_RETRIES,
        **details,
    }


def _may_be_repeated(asked: Asked, fault: Fault) -> bool:
    return fault.retryable and (asked.idempotent or not _is_in_doubt(asked, fault))


def _is_in_doubt(asked: Asked, fault: Fault) -> bool:
    return asked.sent and asked.method == CALL_TOOL and fault in _LEAVE_IN_DOUBT


def _result(
    asked: Asked, said: str, body: dict[str, object], document: Mapping[str, object] = _NOTHING
) -> dict[str, object]:
    content = [{"type": "text", "text": said}]
    if document:
        content.append({"type": "text", "text": bytes(jsonrpc.to_raw(dict(document))).decode()})
    result: dict[str, object] = {
        "content": content,
        "isError": True,
        "_meta": {REFUSAL_KEY: body},
    }
    return {"resultType": "complete", **result} if asked.modern else result


def _advice(asked: Asked, refusal: Refusal) -> str:
    """What to do next, for a model and for the person who reads over its shoulder."""
    else_ = " ".join(refusal.suggestions)
    if refusal.fallback_tool:
        else_ = f"{else_} The tool {refusal.fallback_tool} may do instead.".strip()
    return f"{_when(asked, refusal)} {else_}".rstrip()


def _when(asked: Asked, refusal: Refusal) -> str:
    in_doubt = _is_in_doubt(asked, refusal.fault)
    if not _may_be_repeated(asked, refusal.fault):
        if in_doubt:
            return "The tool may have run all the same: check that before you call it again."
        return "The tool did not run, and calling it again in the same way will not help."
    ran = (
        "The tool may have run, but it can be called twice" if in_doubt else "The tool did not run"
    )
    if refusal.retry_after is None:
        return f"{ran}; calling it again in a moment may help."
    return f"{ran}; call it again in {_spoken(refusal.retry_after)} at the earliest."


def _spoken(length: timedelta) -> str:
    """A wait in words, never shorter than it is."""
    seconds = length.total_seconds()
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds > 2 * size:
            return count_noun(math.ceil(seconds / size), unit)
    return count_noun(math.ceil(seconds * 100) / 100, "second")


def _members(said: object) -> dict[str, object]:
    return {**cast("dict[str, object]", said)} if isinstance(said, dict) else {}


def _error(request_id: Id, code: int, because: str, body: dict[str, object]) -> Frame:
    return Frame("2.0", request_id, error=jsonrpc.to_raw(ErrorBody(code, because, body)))


def _milliseconds(length: timedelta) -> int:
    return max(0, round(length / timedelta(milliseconds=1)))
