"""Every error that Comity reports, in all dialects, and its three exception classes."""

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final, Literal

type Dialect = Literal["jsonrpc", "mcp", "mgp", "mcpl"]
type Category = Literal["protocol", "security", "lifecycle", "resource", "validation", "external"]
type Outcome = Literal["not_accepted", "not_approved"]
"""The outcome in answers of MCPL methods if a policy, and not an authority, decided. (D-60)"""


@dataclass(frozen=True, slots=True)
class RegistryError:
    """A fault in the dialect of the registry: its number, its name, its HTTP status."""

    code: int
    error_type: str
    http_status: int


@dataclass(frozen=True, slots=True)
class Fault:
    """One way in which a request can fail, and whether trying again may help.

    `mgp` is its number on connections that negotiated MGP, if it has one of its own there. Plain
    clients get a fault that is `in_result` as the result of their tool call, for a model to read.
    Every other fault, and every fault of another method, is a JSON-RPC error. `mcpl` is its number
    in answers of MCPL methods, if that is not `code`. `mcpx` is its name in a `system/error`, or
    the close code of the WebSocket.
    """

    dialect: Dialect
    code: int
    error_type: str
    category: Category
    http_status: int = 200
    retryable: bool = False
    mgp: int | None = None
    in_result: bool = False
    face: RegistryError = RegistryError(-32603, "InternalError", 500)
    mcpl: int | Outcome | None = None
    mcpx: str | int | None = None

    @property
    def reg(self) -> int:
        """Its number at the registry's face."""
        return self.face.code

    @property
    def reg_type(self) -> str:
        return self.face.error_type

    @property
    def reg_status(self) -> int:
        return self.face.http_status


_BAD_REQUEST: Final = RegistryError(-32600, "InvalidRequest", 400)
_BAD_PARAMS: Final = RegistryError(-32602, "InvalidParams", 400)
_NOT_VALID: Final = RegistryError(-32001, "ValidationError", 400)
_NO_TOOL: Final = RegistryError(-32002, "ToolNotFound", 404)
_UNKNOWN_CALLER: Final = RegistryError(-32004, "AuthenticationError", 401)
_NOT_ALLOWED: Final = RegistryError(-32005, "AuthorizationError", 403)
_NOT_NOW: Final = RegistryError(-32603, "InternalError", 503)
_POLICY_VIOLATION: Final = 1008
"""The close code of a WebSocket whose client may not be there. (RFC 6455 §7.4.1)"""


def _at_the_door(error_type: str, category: Category, status: int) -> Fault:
    """A fault of the HTTP endpoint, before it has read the JSON-RPC request."""
    face = RegistryError(-32600, "InvalidRequest", status)
    return Fault("jsonrpc", -32600, error_type, category, status, face=face)


PARSE_ERROR = Fault(
    "jsonrpc",
    -32700,
    "parse_error",
    "protocol",
    400,
    face=RegistryError(-32700, "ParseError", 400),
    mcpx="invalid_envelope",
)
INVALID_REQUEST = Fault(
    "jsonrpc",
    -32600,
    "invalid_request",
    "protocol",
    400,
    face=_BAD_REQUEST,
    mcpx="invalid_envelope",
)
METHOD_NOT_FOUND = Fault(
    "jsonrpc",
    -32601,
    "method_not_found",
    "protocol",
    404,
    face=RegistryError(-32601, "MethodNotFound", 400),
    mcpx="invalid_envelope",
)
INVALID_PARAMS = Fault(
    "jsonrpc",
    -32602,
    "invalid_params",
    "protocol",
    400,
    face=_BAD_PARAMS,
    mcpx="invalid_envelope",
)
INTERNAL_ERROR = Fault("jsonrpc", -32603, "internal_error", "protocol")
RESOURCE_NOT_FOUND = Fault("mcp", -32002, "resource_not_found", "validation", face=_BAD_PARAMS)
URL_ELICITATION_REQUIRED = Fault(
    "mcp", -32042, "url_elicitation_required", "external", face=_NOT_ALLOWED
)
HEADER_MISMATCH = Fault("mcp", -32020, "header_mismatch", "protocol", 400, face=_BAD_REQUEST)
MISSING_CAPABILITY = Fault("mcp", -32021, "missing_capability", "protocol", 400, face=_BAD_REQUEST)
UNSUPPORTED_VERSION = Fault(
    "mcp", -32022, "unsupported_version", "protocol", 400, face=_BAD_REQUEST
)
# MCP Events, as the draft numbers them.
EVENT_NOT_FOUND = Fault("mcp", -32011, "event_not_found", "validation", face=_BAD_PARAMS)
EVENTS_FORBIDDEN = Fault("mcp", -32012, "events_forbidden", "security", face=_NOT_ALLOWED)
MODE_UNSUPPORTED = Fault("mcp", -32014, "mode_unsupported", "protocol", face=_BAD_PARAMS)
CALLBACK_FAILED = Fault("mcp", -32015, "callback_failed", "external", face=_BAD_PARAMS)

# Who asks, and what it may do. (refusal table)
UNAUTHENTICATED = Fault(
    "jsonrpc",
    -32600,
    "unauthenticated",
    "security",
    401,
    mgp=1002,
    face=_UNKNOWN_CALLER,
    mcpx=_POLICY_VIOLATION,
)
CREDENTIAL_EXPIRED = Fault(
    "jsonrpc",
    -32600,
    "credential_expired",
    "security",
    401,
    mgp=1003,
    face=_UNKNOWN_CALLER,
    mcpx=_POLICY_VIOLATION,
)
PERMISSION_DENIED = Fault(
    "jsonrpc",
    -32600,
    "permission_denied",
    "security",
    mgp=1000,
    in_result=True,
    face=_NOT_ALLOWED,
)
APPROVAL_REQUIRED = replace(PERMISSION_DENIED, error_type="approval_required")
PENDING_APPROVAL = Fault(
    "jsonrpc",
    -32600,
    "pending_approval",
    "security",
    retryable=True,
    mgp=1000,
    in_result=True,
    face=RegistryError(-32603, "PendingApproval", 503),
)
SIGN_IN_REQUIRED = replace(PENDING_APPROVAL, error_type="sign_in_required")
DECLINED = Fault(
    "jsonrpc",
    -32600,
    "declined",
    "security",
    mgp=1000,
    in_result=True,
    face=_NOT_ALLOWED,
    mcpl="not_approved",
)
ACCESS_DENIED = Fault(
    "jsonrpc",
    -32600,
    "access_denied",
    "security",
    mgp=1001,
    in_result=True,
    face=_NOT_ALLOWED,
    mcpx="capability_violation",
)
VALIDATION_BLOCKED = Fault(
    "jsonrpc",
    -32602,
    "validation_blocked",
    "security",
    400,
    mgp=1010,
    in_result=True,
    face=_NOT_VALID,
)
CODE_UNSAFE = Fault(
    "jsonrpc", -32602, "code_unsafe", "security", 400, mgp=1011, in_result=True, face=_NOT_VALID
)
RATE_LIMITED = Fault(
    "jsonrpc",
    -32603,
    "rate_limited",
    "resource",
    retryable=True,
    mgp=3000,
    in_result=True,
    # Free among the numbers that REG leaves to implementations. (D-84)
    face=RegistryError(-32006, "RateLimited", 429),
    mcpl="not_accepted",
    mcpx="rate_limited",
)
QUOTA_EXCEEDED = Fault(
    "jsonrpc",
    -32603,
    "quota_exceeded",
    "resource",
    retryable=True,
    mgp=3002,
    in_result=True,
    face=RegistryError(-32603, "QuotaExceeded", 429),
    mcpl="not_accepted",
)
TOOL_DISABLED = Fault(
    "jsonrpc", -32602, "tool_disabled", "validation", 400, mgp=4002, face=_NO_TOOL
)

# On plain MCP links these have no number of their own (refusal table): `error_type` tells them.
SERVER_NOT_READY = Fault(
    "jsonrpc", -32603, "server_not_ready", "lifecycle", retryable=True, mgp=2000, face=_NOT_NOW
)
SERVER_DRAINING = Fault(
    "jsonrpc", -32603, "server_draining", "lifecycle", retryable=True, mgp=2001, face=_NOT_NOW
)
SERVER_RESTARTING = Fault(
    "jsonrpc", -32603, "server_restarting", "lifecycle", retryable=True, mgp=2002, face=_NOT_NOW
)
# Not ready either, and it will not be before an operator starts it.
SERVER_STOPPED = Fault("jsonrpc", -32603, "server_stopped", "lifecycle", mgp=2000, face=_NOT_NOW)
EXHAUSTED = Fault(
    "jsonrpc",
    -32603,
    "exhausted",
    "resource",
    retryable=True,
    mgp=3001,
    in_result=True,
    face=_NOT_NOW,
    mcpl="not_accepted",
)
TIMEOUT = Fault(
    "jsonrpc",
    -32603,
    "timeout",
    "resource",
    retryable=True,
    mgp=3003,
    in_result=True,
    # One number for a crash and for a timeout; the name tells them apart. (D-78)
    face=RegistryError(-32003, "ToolTimeout", 504),
)
INVALID_TOOL_ARGS = Fault(
    "jsonrpc",
    -32602,
    "invalid_tool_args",
    "validation",
    400,
    mgp=4000,
    in_result=True,
    face=_NOT_VALID,
)
TOOL_NOT_FOUND = Fault(
    "jsonrpc", -32602, "tool_not_found", "validation", 400, mgp=4001, face=_NO_TOOL
)
UPSTREAM_FAILED = Fault(
    "jsonrpc",
    -32603,
    "upstream_failed",
    "external",
    retryable=True,
    mgp=5000,
    in_result=True,
    face=RegistryError(-32003, "ToolExecution", 502),
)
UPSTREAM_SLOW = Fault(
    "jsonrpc",
    -32603,
    "upstream_slow",
    "external",
    retryable=True,
    mgp=5001,
    in_result=True,
    face=RegistryError(-32003, "ToolExecution", 504),
)
UPSTREAM_DOWN = Fault(
    "jsonrpc",
    -32603,
    "upstream_down",
    "external",
    retryable=True,
    mgp=5002,
    in_result=True,
    face=RegistryError(-32003, "ToolExecution", 503),
)

INTERRUPTED = Fault(
    "jsonrpc",
    -32603,
    "interrupted",
    "lifecycle",
    retryable=True,
    mgp=2000,
    in_result=True,
    face=RegistryError(-32003, "ToolExecution", 503),
)

POLICY_UNKNOWN = Fault(
    "jsonrpc",
    -32603,
    "policy_unknown",
    "lifecycle",
    retryable=True,
    mgp=2000,
    in_result=True,
    face=_NOT_NOW,
)
"""This node cannot know what is allowed just now, and so allows nothing."""

AUDIT_LOG_AWAY = replace(POLICY_UNKNOWN, error_type="audit_log_unavailable")
"""Nor can it write down what happens, and so lets nothing happen that must be."""

CUT_OFF = replace(POLICY_UNKNOWN, error_type="cut_off")
"""Nor can it reach the other nodes, and so does nothing that would need them."""

SECRETS_AWAY = replace(POLICY_UNKNOWN, error_type="secrets_unavailable")
"""Nor can it decrypt a stored credential, and so makes no call that needs one."""

BUDGET_EXCEEDED = replace(QUOTA_EXCEEDED, error_type="budget_exceeded", mgp=None)
NO_MODEL = replace(UPSTREAM_FAILED, error_type="no_model", retryable=False, mgp=None)
MODEL_REFUSED = replace(NO_MODEL, error_type="model_refused")
HOOK_LOOP = replace(INVALID_REQUEST, error_type="hook_loop")

HTTP_STATUS_OF_CODE = {
    fault.code: fault.http_status
    for fault in reversed(list(globals().values()))
    if isinstance(fault, Fault) and fault.http_status != 200
}
"""The HTTP status that 2026-07-28 demands for an error that is answered as JSON."""

# MCPL's own, in answers to its own methods alone: MCP reserves some of these numbers. (D-91)
FEATURE_NOT_ENABLED = Fault("mcpl", -32001, "feature_not_enabled", "security")
FEATURE_UNKNOWN = Fault("mcpl", -32003, "feature_unknown", "security")
CHECKPOINT_UNKNOWN = Fault("mcpl", -32005, "checkpoint_unknown", "validation")
SCOPE_NOT_PERMITTED = Fault("mcpl", -32017, "scope_not_permitted", "security")
CHANNEL_UNKNOWN = Fault("mcpl", -32023, "channel_unknown", "validation")
CHANNEL_NOT_OPENED = Fault("mcpl", -32024, "channel_not_opened", "external")

HOST_REFUSED = _at_the_door("host_refused", "security", 421)
ORIGIN_REFUSED = _at_the_door("origin_refused", "security", 403)
BODY_TOO_LARGE = _at_the_door("body_too_large", "protocol", 413)
BODY_TOO_SLOW = _at_the_door("body_too_slow", "protocol", 408)
WRONG_CONTENT_TYPE = _at_the_door("wrong_content_type", "protocol", 415)
NOT_ACCEPTABLE = _at_the_door("not_acceptable", "protocol", 406)
SESSION_UNKNOWN = _at_the_door("session_unknown", "protocol", 404)
SCOPE_MISSING = _at_the_door("insufficient_scope", "security", 403)
OPERATORS_ONLY = _at_the_door("operators_only", "security", 403)
JOINING_REFUSED = _at_the_door("joining_refused", "security", 403)
NOTHING_HERE = _at_the_door("nothing_here", "protocol", 404)
ALREADY_EXISTS = _at_the_door("already_exists", "protocol", 409)
INVALID_FILTER = _at_the_door("invalid_filter", "protocol", 400)


MGP_CODES = range(1000, 6000)
"""The numbers that are MGP's, standard ones and a server's own. (MGP §14.2)"""

FAULT_OF_MGP = {
    fault.mgp: fault
    for fault in reversed(list(globals().values()))
    if isinstance(fault, Fault) and fault.mgp is not None
}


class MalformedMessage(ValueError):
    """The peer said something that is not in its dialect; `fault` is what to answer."""

    def __init__(self, because: str, fault: Fault = PARSE_ERROR) -> None:
        super().__init__(because)
        self.fault = fault


class Unavailable(Exception):
    """A dependency (a tool server, an engine) did not do what was asked of it.

    `retry_after` is how long to wait at least before asking again, where that is known.
    `challenge` is the WWW-Authenticate header of a server that demands a sign-in.
    """

    def __init__(
        self,
        because: str,
        fault: Fault = UPSTREAM_FAILED,
        retry_after: timedelta | None = None,
        challenge: str = "",
    ) -> None:
        super().__init__(because)
        self.challenge = challenge
        self.fault = fault
        self.retry_after = retry_after


class Misconfigured(Exception):
    """The operator wrote something that cannot be; the text says what to do next.

    `exit_status` is for a command that the gateway refused, if it is not the usual one.
    """

    def __init__(self, message: object = "", exit_status: int | None = None) -> None:
        super().__init__(message)
        self.exit_status = exit_status
