"""The table of faults: each has a name, its own place in its dialect, and an answer over HTTP."""

import re

import pytest

from comity.wire import errors
from comity.wire.errors import Fault, MalformedMessage, Misconfigured, Unavailable

FAULTS = {name: found for name, found in vars(errors).items() if isinstance(found, Fault)}
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
    assert not fault.retryable or fault.category in ("lifecycle", "resource", "external")


def test_an_exception_says_whose_fault_it_is_and_what_to_answer() -> None:
    assert MalformedMessage("broken").fault is errors.PARSE_ERROR
    assert MalformedMessage("too many", errors.EXHAUSTED).fault is errors.EXHAUSTED
    assert Unavailable("gone").fault is errors.UPSTREAM_FAILED
    assert Unavailable("slow", errors.UPSTREAM_TIMEOUT).fault is errors.UPSTREAM_TIMEOUT
    assert str(MalformedMessage("broken")) == "broken"
    assert not isinstance(Misconfigured("write a port"), MalformedMessage | Unavailable)
