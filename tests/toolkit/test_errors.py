"""The table of faults: each has a name, its own place in its dialect, and an answer over HTTP."""

import re

from comity import errors
from comity.errors import Fault
from tests.support.cases import loop_over

FAULTS = {name: found for name, found in vars(errors).items() if isinstance(found, Fault)}
CATEGORY_OF_THOUSAND = {
    1: "security",
    2: "lifecycle",
    3: "resource",
    4: "validation",
    5: "external",
}
# The refusal table of the decisions: MGP's number, the registry's, the HTTP status there, the name
# on a topic, what MCPL's methods answer, and whether a plain client gets a result.
TABLE = {
    "parse_error": (None, -32700, 400, "invalid_envelope", None, False),
    "invalid_request": (None, -32600, 400, "invalid_envelope", None, False),
    "method_not_found": (None, -32601, 400, "invalid_envelope", None, False),
    "invalid_params": (None, -32602, 400, "invalid_envelope", None, False),
    "unauthenticated": (1002, -32004, 401, 1008, None, False),
    "credential_expired": (1003, -32004, 401, 1008, None, False),
    "permission_denied": (1000, -32005, 403, None, None, True),
    "access_denied": (1001, -32005, 403, "capability_violation", None, True),
    "validation_blocked": (1010, -32001, 400, None, None, True),
    "code_unsafe": (1011, -32001, 400, None, None, True),
    "server_not_ready": (2000, -32603, 503, None, None, False),
    "server_draining": (2001, -32603, 503, None, None, False),
    "server_restarting": (2002, -32603, 503, None, None, False),
    "server_stopped": (2000, -32603, 503, None, None, False),
    "policy_unknown": (2000, -32603, 503, None, None, True),
    "rate_limited": (3000, -32006, 429, "rate_limited", "not_accepted", True),
    "exhausted": (3001, -32603, 503, None, "not_accepted", True),
    "quota_exceeded": (3002, -32603, 429, None, "not_accepted", True),
    "timeout": (3003, -32003, 504, None, None, True),
    "invalid_tool_args": (4000, -32001, 400, None, None, True),
    "tool_not_found": (4001, -32002, 404, None, None, False),
    "tool_disabled": (4002, -32002, 404, None, None, False),
    "upstream_failed": (5000, -32003, 502, None, None, True),
    "upstream_slow": (5001, -32003, 504, None, None, True),
    "upstream_down": (5002, -32003, 503, None, None, True),
    "interrupted": (2000, -32003, 503, None, None, True),
    "declined": (1000, -32005, 403, None, "not_approved", True),
    "approval_required": (1000, -32005, 403, None, None, True),
    "pending_approval": (1000, -32603, 503, None, None, True),
    "audit_log_unavailable": (2000, -32603, 503, None, None, True),
}
NAMES_AT_THE_REGISTRY = {
    -32700: {"ParseError"},
    -32600: {"InvalidRequest"},
    -32601: {"MethodNotFound"},
    -32602: {"InvalidParams"},
    -32603: {"InternalError", "QuotaExceeded", "PendingApproval"},
    -32001: {"ValidationError"},
    -32002: {"ToolNotFound"},
    -32003: {"ToolExecution", "ToolTimeout"},
    -32004: {"AuthenticationError"},
    -32005: {"AuthorizationError"},
    -32006: {"RateLimited"},
}
each_fault = loop_over("fault", FAULTS.values(), ids=FAULTS.keys())


def test_faults_have_unique_names_in_lower_case_words() -> None:
    names = [fault.error_type for fault in FAULTS.values()]
    assert len(set(names)) == len(names)
    assert [name for name in names if not re.fullmatch(r"[a-z]+(_[a-z]+)*", name)] == []


@each_fault
def test_numbers_of_a_fault_fit_their_dialects(fault: Fault) -> None:
    assert -32768 <= fault.code <= -32000 or fault.dialect not in ("jsonrpc", "mcp")
    assert fault.mgp is None or CATEGORY_OF_THOUSAND[fault.mgp // 1000] == fault.category
    assert fault.reg_type in NAMES_AT_THE_REGISTRY[fault.reg]
    assert 400 <= fault.reg_status < 600


@loop_over(
    ("fault", "dialect", "code"),
    [
        (errors.PARSE_ERROR, "jsonrpc", -32700),
        (errors.INVALID_REQUEST, "jsonrpc", -32600),
        (errors.METHOD_NOT_FOUND, "jsonrpc", -32601),
        (errors.INVALID_PARAMS, "jsonrpc", -32602),
        (errors.INTERNAL_ERROR, "jsonrpc", -32603),
        (errors.RESOURCE_NOT_FOUND, "mcp", -32002),
        (errors.URL_ELICITATION_REQUIRED, "mcp", -32042),
        (errors.HEADER_MISMATCH, "mcp", -32020),
        (errors.MISSING_CAPABILITY, "mcp", -32021),
        (errors.UNSUPPORTED_VERSION, "mcp", -32022),
        (errors.FEATURE_NOT_ENABLED, "mcpl", -32001),
        (errors.FEATURE_UNKNOWN, "mcpl", -32003),
        (errors.CHECKPOINT_UNKNOWN, "mcpl", -32005),
        (errors.SCOPE_NOT_PERMITTED, "mcpl", -32017),
        (errors.CHANNEL_UNKNOWN, "mcpl", -32023),
        (errors.CHANNEL_NOT_OPENED, "mcpl", -32024),
    ],
)
def test_code_is_the_one_that_its_specification_gives(
    fault: Fault, dialect: str, code: int
) -> None:
    assert (fault.dialect, fault.code) == (dialect, code)


@loop_over("error_type", TABLE)
def test_a_fault_has_the_numbers_that_the_refusal_table_gives_it(error_type: str) -> None:
    fault = next(each for each in FAULTS.values() if each.error_type == error_type)
    face = (fault.mgp, fault.reg, fault.reg_status, fault.mcpx, fault.mcpl, fault.in_result)
    assert face == TABLE[error_type]


def test_faults_that_share_an_mgp_number_are_of_one_kind() -> None:
    # MGP has one number for a server that is not ready, whether or not it will be by itself, and
    # one for what a person may still allow.
    shared = {1000, 2000}
    numbers = [fault.mgp for fault in FAULTS.values() if fault.mgp not in (None, *shared)]
    assert len(set(numbers)) == len(numbers)
    assert errors.FAULT_OF_MGP[1000] is errors.PERMISSION_DENIED
    assert errors.FAULT_OF_MGP[2000] is errors.SERVER_NOT_READY


def test_only_what_never_was_a_request_is_refused_with_another_status() -> None:
    """The HTTP door refuses before it knows any request; to clients that is an invalid one."""
    others = {
        fault.code
        for fault in FAULTS.values()
        if errors.HTTP_STATUS_OF_CODE.get(fault.code, 200) != fault.http_status
    }
    assert others <= {errors.INVALID_REQUEST.code}


@each_fault
def test_only_what_may_pass_by_itself_is_worth_trying_again(fault: Fault) -> None:
    # What a person is asked about may be answered meanwhile.
    passes = fault.category in ("lifecycle", "resource", "external")
    asked = (errors.PENDING_APPROVAL, errors.SIGN_IN_REQUIRED)
    assert not fault.retryable or passes or fault in asked
