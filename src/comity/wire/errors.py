"""Every error code of every dialect, as one table, and whose fault a failure is. (MGP §14.3)

A code is never written as a number anywhere else, and means nothing without its dialect:
-32001 is a disabled feature set in MCPL and a timeout in the MCP SDK.
"""

from dataclasses import dataclass
from typing import Literal

type Dialect = Literal["jsonrpc", "mcp", "mgp", "mcpl"]
type Category = Literal["protocol", "security", "lifecycle", "resource", "validation", "external"]


@dataclass(frozen=True, slots=True)
class Fault:
    """One way in which a request can fail, and whether trying again may help."""

    dialect: Dialect
    code: int
    error_type: str
    category: Category
    http_status: int = 200
    retryable: bool = False


PARSE_ERROR = Fault("jsonrpc", -32700, "parse_error", "protocol", 400)
INVALID_REQUEST = Fault("jsonrpc", -32600, "invalid_request", "protocol", 400)
METHOD_NOT_FOUND = Fault("jsonrpc", -32601, "method_not_found", "protocol", 404)
INVALID_PARAMS = Fault("jsonrpc", -32602, "invalid_params", "protocol", 400)
INTERNAL_ERROR = Fault("jsonrpc", -32603, "internal_error", "protocol")
RESOURCE_NOT_FOUND = Fault("mcp", -32002, "resource_not_found", "validation")
URL_ELICITATION_REQUIRED = Fault("mcp", -32042, "url_elicitation_required", "external")
HEADER_MISMATCH = Fault("mcp", -32020, "header_mismatch", "protocol", 400)
MISSING_CAPABILITY = Fault("mcp", -32021, "missing_capability", "protocol", 400)
UNSUPPORTED_VERSION = Fault("mcp", -32022, "unsupported_version", "protocol", 400)

# On plain MCP links the lifecycle and upstream faults have no number of their own (refusal table):
# they are told apart by `error_type`.
SERVER_NOT_READY = Fault("jsonrpc", -32603, "server_not_ready", "lifecycle", retryable=True)
UPSTREAM_FAILED = Fault("jsonrpc", -32603, "upstream_failed", "external", retryable=True)
UPSTREAM_TIMEOUT = Fault("jsonrpc", -32603, "timeout", "resource", retryable=True)
EXHAUSTED = Fault("jsonrpc", -32603, "exhausted", "resource", retryable=True)

HTTP_STATUS_OF_CODE = {
    fault.code: fault.http_status
    for fault in list(globals().values())
    if isinstance(fault, Fault) and fault.http_status != 200
}
"""The HTTP status that 2026-07-28 demands for an error that reaches the door as JSON."""

# What is refused at the HTTP door, before anybody knows which request it is.
HOST_REFUSED = Fault("jsonrpc", -32600, "host_refused", "security", 421)
ORIGIN_REFUSED = Fault("jsonrpc", -32600, "origin_refused", "security", 403)
BODY_TOO_LARGE = Fault("jsonrpc", -32600, "body_too_large", "protocol", 413)
BODY_TOO_SLOW = Fault("jsonrpc", -32600, "body_too_slow", "protocol", 408)
WRONG_CONTENT_TYPE = Fault("jsonrpc", -32600, "wrong_content_type", "protocol", 415)
NOT_ACCEPTABLE = Fault("jsonrpc", -32600, "not_acceptable", "protocol", 406)
SESSION_UNKNOWN = Fault("jsonrpc", -32600, "session_unknown", "protocol", 404)
NOTHING_HERE = Fault("jsonrpc", -32600, "nothing_here", "protocol", 404)


class MalformedMessage(ValueError):
    """The peer said something that is not in its dialect; `fault` is what to answer."""

    def __init__(self, because: str, fault: Fault = PARSE_ERROR) -> None:
        super().__init__(because)
        self.fault = fault


class Unavailable(Exception):
    """A dependency (a tool server, an engine) did not do what was asked of it."""

    def __init__(self, because: str, fault: Fault = UPSTREAM_FAILED) -> None:
        super().__init__(because)
        self.fault = fault


class Misconfigured(Exception):
    """The operator wrote something that cannot be; the text says what to do next."""
