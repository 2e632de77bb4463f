"""The table of faults: each has a name, its own place in its dialect, and an answer over HTTP."""

import re
from datetime import timedelta

import pytest

from comity.wire import errors
from comity.wire.errors import Fault, MalformedMessage, Misconfigured, Unavailable

FAULTS = {name: found for name, found in vars(errors).items() if isinstance(found, Fault)}
SOON = timedelta(milliseconds=1500)
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
    "journal_unavailable": (2000, -32603, 503, None, None, True),
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
each_fault = pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())


def test_no_two_faults_bear_the_same_name_on_the_wire() -> None:
    names = [fault.error_type for fault in FAULTS.values()]
    assert len(set(names)) == len(names)


@each_fault
def test_a_fault_is_named_in_lower_case_words(fault: Fault) -> None:
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", fault.error_type)


@each_fault
def test_a_fault_of_json_rpc_stays_in_its_reserved_range(fault: Fault) -> None:
    assert -32768 <= fault.code <= -32000 or fault.dialect not in ("jsonrpc", "mcp")


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (errors.PARSE_ERROR, -32700),
        (errors.INVALID_REQUEST, -32600),
        (errors.METHOD_NOT_FOUND, -32601),
        (errors.INVALID_PARAMS, -32602),
        (errors.INTERNAL_ERROR, -32603),
        (errors.RESOURCE_NOT_FOUND, -32002),
        (errors.URL_ELICITATION_REQUIRED, -32042),
        (errors.HEADER_MISMATCH, -32020),
        (errors.MISSING_CAPABILITY, -32021),
        (errors.UNSUPPORTED_VERSION, -32022),
    ],
)
def test_a_code_is_the_one_that_its_specification_gives(fault: Fault, code: int) -> None:
    assert fault.code == code


@pytest.mark.parametrize("error_type", TABLE)
def test_a_fault_has_the_numbers_that_the_refusal_table_gives_it(error_type: str) -> None:
    fault = next(each for each in FAULTS.values() if each.error_type == error_type)
    face = (fault.mgp, fault.reg, fault.reg_status, fault.mcpx, fault.mcpl, fault.in_result)
    assert face == TABLE[error_type]


@each_fault
def test_a_number_of_the_registry_has_the_name_that_it_has_there(fault: Fault) -> None:
    assert fault.reg_type in NAMES_AT_THE_REGISTRY[fault.reg]
    assert 400 <= fault.reg_status < 600


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (errors.FEATURE_NOT_ENABLED, -32001),
        (errors.FEATURE_UNKNOWN, -32003),
        (errors.CHECKPOINT_UNKNOWN, -32005),
        (errors.SCOPE_NOT_PERMITTED, -32017),
        (errors.CHANNEL_UNKNOWN, -32023),
        (errors.CHANNEL_NOT_OPENED, -32024),
    ],
)
def test_a_fault_of_mcpl_is_known_in_mcpl_alone(fault: Fault, code: int) -> None:
    assert (fault.dialect, fault.code, fault.mgp, fault.mcpx) == ("mcpl", code, None, None)


@each_fault
def test_the_thousands_of_an_mgp_number_are_its_category(fault: Fault) -> None:
    assert fault.mgp is None or CATEGORY_OF_THOUSAND[fault.mgp // 1000] == fault.category


def test_faults_that_share_an_mgp_number_are_of_one_kind() -> None:
    # MGP has one number for a server that is not ready, whether or not it will be by itself, and
    # one for what a person may still allow.
    shared = {1000, 2000}
    numbers = [fault.mgp for fault in FAULTS.values() if fault.mgp not in (None, *shared)]
    assert len(set(numbers)) == len(numbers)
    assert errors.FAULT_OF_MGP[1000] is errors.PERMISSION_DENIED
    assert errors.FAULT_OF_MGP[2000] is errors.SERVER_NOT_READY


@pytest.mark.parametrize(
    "fault",
    [
        errors.SERVER_NOT_READY,
        errors.SERVER_DRAINING,
        errors.SERVER_RESTARTING,
        errors.SERVER_STOPPED,
    ],
)
def test_the_lifecycle_of_a_server_is_never_told_as_a_result(fault: Fault) -> None:
    assert not fault.in_result


def test_a_code_has_one_http_status_and_only_where_it_is_not_200() -> None:
    expected = {-32700: 400, -32600: 400, -32601: 404, -32602: 400}
    expected |= {-32020: 400, -32021: 400, -32022: 400}
    assert expected == errors.HTTP_STATUS_OF_CODE


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
    assert not fault.retryable or passes or fault is errors.PENDING_APPROVAL


def test_an_exception_says_whose_fault_it_is_and_what_to_answer() -> None:
    assert MalformedMessage("broken").fault is errors.PARSE_ERROR
    assert MalformedMessage("too many", errors.EXHAUSTED).fault is errors.EXHAUSTED
    assert Unavailable("gone").fault is errors.UPSTREAM_FAILED
    assert Unavailable("late", errors.TIMEOUT).fault is errors.TIMEOUT
    assert str(MalformedMessage("broken")) == "broken"
    assert Unavailable("gone").retry_after is None
    assert Unavailable("soon", retry_after=SOON).retry_after == SOON
    assert not isinstance(Misconfigured("write a port"), MalformedMessage | Unavailable)
