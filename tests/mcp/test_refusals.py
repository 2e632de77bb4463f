"""One refusal in the words of each kind of connection, with its advice."""

import json
from datetime import timedelta
from typing import Any

from msgspec import UNSET, Raw

from comity import errors
from comity.errors import Fault
from comity.mcp import jsonrpc
from comity.mcp.mgp import NegotiatedTerms
from comity.mcp.refusals import (
    ADVICE,
    MAX_KEPT_BYTES,
    Refusal,
    RefusedRequest,
    RegistryContext,
    of_server,
    refusal_response,
    suggestions_for,
    to_plain_mcp_error,
    trace_beside,
    trace_of,
    trim_params,
)
from tests.support.cases import loop_over

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
MGP = NegotiatedTerms("0.3.0", frozenset())
FAULTS = {name: found for name, found in vars(errors).items() if isinstance(found, Fault)}
each_fault = loop_over("fault", FAULTS.values(), ids=FAULTS.keys())
each_method = loop_over("method", ["tools/call", "resources/read", "own/method"])
LATER = timedelta(milliseconds=2500)


def worded(
    fault: Fault, method: str = "tools/call", after: timedelta | None = None, **asked: Any
) -> dict[str, Any]:
    frame = refusal_response(
        RefusedRequest(7, method, **asked), Refusal(fault, "it broke.", after), TRACE
    )
    return json.loads(jsonrpc.encode_frame(frame))


@each_fault
@each_method
def test_on_an_mgp_link_a_refusal_is_an_error_with_its_number(fault: Fault, method: str) -> None:
    answer = worded(fault, method, terms=MGP)
    assert answer["error"]["code"] == (fault.mgp or fault.code)
    assert answer["error"]["message"] == "it broke."
    data = answer["error"]["data"]
    assert (data["error_type"], data["reason"], data["trace_id"]) == (
        fault.error_type,
        "it broke.",
        TRACE,
    )
    assert data["_mgp"]["retryable"] is fault.retryable
    assert data["_mgp"]["category"] in (
        "security",
        "lifecycle",
        "resource",
        "validation",
        "external",
    )


@each_fault
def test_on_a_plain_link_a_tool_call_that_failed_on_its_way_has_a_result(fault: Fault) -> None:
    answer = worded(fault)
    assert answer["id"] == 7
    assert ("result" in answer) is fault.in_result
    assert ("error" in answer) is not fault.in_result


@each_fault
@loop_over("method", ["resources/read", "own/method"])
def test_on_a_plain_link_every_other_method_has_an_error(fault: Fault, method: str) -> None:
    error = worded(fault, method)["error"]
    assert error["code"] == fault.code
    assert error["data"]["error_type"] == fault.error_type
    assert error["data"]["trace_id"] == TRACE
    assert "_mgp" not in error["data"]


def test_a_result_says_what_happened_and_what_to_do_next() -> None:
    result = worded(errors.UPSTREAM_DOWN, after=LATER)["result"]
    assert result["isError"] is True
    assert result["content"] == [
        {
            "type": "text",
            "text": "It broke. The tool did not run; call it again in 2.5 seconds at the "
            f"earliest. (trace {TRACE})",
        }
    ]
    assert result["_meta"] == {
        "dev.comity/refusal": {
            "error_type": "upstream_down",
            "reason": "it broke.",
            "trace_id": TRACE,
            "retryable": True,
            "retry_after_ms": 2500,
            "retry_strategy": "fixed_delay",
            "max_retries": 3,
            "details": {"outcome": "not_run"},
        }
    }


def test_in_the_modern_era_a_result_is_complete() -> None:
    plain = worded(errors.TIMEOUT)["result"]
    assert worded(errors.TIMEOUT, modern=True)["result"]["resultType"] == "complete"
    # A client that checks structured content would refuse it.
    assert {"resultType", "structuredContent"}.isdisjoint(plain)
    assert "in a moment" in worded(errors.EXHAUSTED)["result"]["content"][0]["text"]


@loop_over(
    ("fault", "error_type"),
    [
        (errors.SERVER_NOT_READY, "server_not_ready"),
        (errors.SERVER_DRAINING, "server_draining"),
        (errors.SERVER_RESTARTING, "server_restarting"),
    ],
)
def test_on_a_plain_link_the_state_of_a_server_is_an_error_that_says_when_to_ask_again(
    fault: Fault, error_type: str
) -> None:
    error = worded(fault, after=LATER)["error"]
    assert error["code"] == -32603
    assert error["data"]["error_type"] == error_type
    assert error["data"]["retry_after_ms"] == 2500


def test_without_a_known_time_the_pauses_grow() -> None:
    recovery = worded(errors.SERVER_RESTARTING, terms=MGP)["error"]["data"]["_mgp"]
    assert recovery == {
        "category": "lifecycle",
        "retryable": True,
        "retry_after_ms": 1000,
        "retry_strategy": "exponential_backoff",
        "max_retries": 3,
        "details": {"outcome": "not_run"},
    }


@loop_over("fault", [errors.TIMEOUT, errors.UPSTREAM_FAILED, errors.UPSTREAM_SLOW])
def test_a_tool_that_may_have_run_is_not_worth_calling_again(fault: Fault) -> None:
    recovery = worded(fault, terms=MGP, sent=True, after=LATER)["error"]["data"]["_mgp"]
    assert recovery["retryable"] is False
    assert recovery["details"] == {"outcome": "unknown"}
    assert "retry_after_ms" not in recovery
    text = worded(fault, sent=True)["result"]["content"][0]["text"]
    assert "Check this before you call it again" in text


@loop_over("fault", [errors.EXHAUSTED, errors.UPSTREAM_DOWN, errors.SERVER_DRAINING])
def test_what_never_reached_its_server_can_be_asked_again(fault: Fault) -> None:
    recovery = worded(fault, terms=MGP, sent=True)["error"]["data"]["_mgp"]
    assert recovery["retryable"] is True
    assert recovery["details"] == {"outcome": "not_run"}


def test_reading_twice_does_no_harm() -> None:
    data = worded(errors.TIMEOUT, "resources/read", sent=True)["error"]["data"]
    assert data["retryable"] is True
    assert "details" not in data


def test_arguments_that_are_wrong_stay_wrong() -> None:
    result = worded(errors.INVALID_TOOL_ARGS)["result"]
    assert "will fail again" in result["content"][0]["text"]
    assert worded(errors.INVALID_TOOL_ARGS, terms=MGP)["error"]["code"] == 4000


def answered(code: int, data: object, method: str = "tools/call") -> dict[str, Any]:
    error = {"code": code, "message": "too much", "data": data}
    frame = jsonrpc.Frame("2.0", 7, error=jsonrpc.to_raw(error))
    return json.loads(jsonrpc.encode_frame(to_plain_mcp_error(RefusedRequest(7, method), frame)))


RECOVERY = {"category": "resource", "retryable": True, "retry_after_ms": 5, "fallback_tool": "x"}


@loop_over(("code", "kind"), [(3000, "rate_limited"), (3003, "timeout"), (5999, None)])
def test_a_plain_client_hears_a_servers_error_of_mgp_as_a_result(code: int, kind: str) -> None:
    result = answered(code, {"_mgp": RECOVERY, "more": 1})["result"]
    assert result["isError"] is True
    assert result["content"] == [{"type": "text", "text": "too much"}]
    assert result["_meta"]["dev.comity/refusal"] == {
        "error_type": kind or "mgp_5999",
        "reason": "too much",
        "more": 1,
        "retryable": True,
        "retry_after_ms": 5,
        "fallback_tool": "x",
    }


@loop_over(
    ("code", "method", "plain"),
    [
        (2001, "tools/call", -32603),
        (4001, "tools/call", -32602),
        (3000, "resources/read", -32603),
    ],
)
def test_a_plain_client_hears_other_errors_of_mgp_under_the_numbers_it_knows(
    code: int, method: str, plain: int
) -> None:
    error = answered(code, {"_mgp": RECOVERY}, method)["error"]
    assert (error["code"], error["message"]) == (plain, "too much")
    assert error["data"]["retryable"] is True
    assert "_mgp" not in error["data"]


@loop_over(
    ("code", "data"),
    [(3000, None), (3000, {"own": 1}), (3000, {"_mgp": 7}), (7, {"_mgp": RECOVERY}), (1, [])],
)
def test_any_other_error_of_a_servers_stays_as_it_is(code: int, data: object) -> None:
    assert answered(code, data)["error"] == {"code": code, "message": "too much", "data": data}


def test_a_result_is_no_error_of_any_kind() -> None:
    frame = jsonrpc.make_result(7, {"_mgp": RECOVERY})
    assert to_plain_mcp_error(RefusedRequest(7, "tools/call"), frame) is frame


def test_a_time_that_has_passed_is_now() -> None:
    past = worded(errors.SERVER_NOT_READY, after=timedelta(seconds=-1))
    assert past["error"]["data"]["retry_after_ms"] == 0


def params(**members: object) -> Raw:
    return jsonrpc.to_raw(members)


def parent(said: object) -> Raw:
    return params(_meta={"traceparent": said})


@loop_over(
    ("given", "trace"),
    [
        (UNSET, None),
        (params(), None),
        (params(_meta={}), None),
        (Raw(b"[1]"), None),
        (params(_meta=7), None),
        (parent(7), None),
        (parent("nothing"), None),
        (parent(f"00-{TRACE}-00f067aa0ba902b7-01"), TRACE),
        (parent(f"01-{TRACE}-00f067aa0ba902b7-01-more"), TRACE),
        (parent(f"ff-{TRACE}-00f067aa0ba902b7-01"), None),
        (parent(f"00-{'0' * 32}-00f067aa0ba902b7-01"), None),
        (parent(f"00-{TRACE.upper()}-00f067aa0ba902b7-01"), None),
        (params(trace_id="4bf92f35-77b3-4da6-a3ce-929d0e0e4736"), TRACE),
        (params(trace_id=TRACE.upper()), TRACE),
        (params(trace_id="\n" + TRACE), None),
        (params(trace_id=1), None),
    ],
)
def test_a_request_may_name_the_trace_that_it_is_part_of(given: Raw, trace: str | None) -> None:
    assert trace_of(given) == trace


def test_a_trace_beside_the_parameters_counts_where_they_name_none() -> None:
    beside = {"jsonrpc": "2.0", "id": 1, "method": "x", "trace_id": TRACE}
    assert trace_beside(jsonrpc.decode_frame(jsonrpc.to_json(beside))) == TRACE
    inside = {**beside, "params": {"trace_id": "1" * 32}}
    assert trace_beside(jsonrpc.decode_frame(jsonrpc.to_json(inside))) == "1" * 32
    assert trace_beside(jsonrpc.decode_frame(jsonrpc.to_json({**beside, "trace_id": 7}))) is None
    assert trace_beside(jsonrpc.make_request(1, "x")) is None


def test_a_long_request_keeps_the_trace_that_it_named() -> None:
    given = params(trace_id=TRACE, arguments={"text": "x" * MAX_KEPT_BYTES})
    assert trace_of(trim_params(given)) == TRACE


def test_what_is_kept_of_a_request_is_small() -> None:
    small = params(name="x", _meta={"a": 1})
    assert trim_params(small) is small
    assert trim_params(UNSET) is UNSET
    long = "x" * MAX_KEPT_BYTES
    assert trim_params(params(name=long, _meta={"a": 1})) == params(_meta={"a": 1})
    assert trim_params(params(name=long)) is UNSET
    assert trim_params(params(_meta={"a": long})) is UNSET
    assert trim_params(Raw(b'["%b"]' % long.encode())) is UNSET


@loop_over("fault", [errors.TIMEOUT, errors.UPSTREAM_FAILED, errors.UPSTREAM_SLOW])
def test_a_tool_that_its_operator_lets_be_called_twice_is_worth_it(fault: Fault) -> None:
    asked: dict[str, Any] = {"sent": True, "idempotent": True}
    recovery = worded(fault, terms=MGP, **asked)["error"]["data"]["_mgp"]
    assert recovery["retryable"] is True
    assert recovery["details"] == {"outcome": "unknown"}
    text = worded(fault, **asked)["result"]["content"][0]["text"]
    assert "may have run, but it can be called twice; calling it again in a moment" in text


def refused(refusal: Refusal, **asked: Any) -> dict[str, Any]:
    return json.loads(
        jsonrpc.encode_frame(
            refusal_response(RefusedRequest(7, "tools/call", **asked), refusal, TRACE)
        )
    )


REJECTED = {"status": "rejected", "violations": ["Blocked import: 'subprocess'"]}


def test_a_rejection_is_a_document_that_a_model_can_read() -> None:
    refusal = Refusal(errors.CODE_UNSAFE, "no", body=REJECTED)
    result = refused(refusal)["result"]
    assert json.loads(result["content"][1]["text"]) == REJECTED
    assert result["_meta"]["dev.comity/refusal"]["details"] == {"outcome": "not_run", **REJECTED}
    governed = refused(refusal, terms=MGP)["error"]
    assert governed["code"] == 1011
    assert governed["data"]["_mgp"]["details"] == {"outcome": "not_run", **REJECTED}


def test_what_a_person_declined_says_so_in_its_details() -> None:
    recovery = refused(Refusal(errors.DECLINED, "no"), terms=MGP)["error"]["data"]["_mgp"]
    assert recovery["details"] == {"outcome": "not_run", "reason": "declined"}


def test_a_field_suggestions_and_a_page_are_told_where_they_are_known() -> None:
    refusal = Refusal(
        errors.INVALID_TOOL_ARGS,
        "must be a number",
        field="/a/0",
        suggestions=("Use 3.",),
        documentation_url="https://docs.example.org/a",
    )
    for asked, place in (({"terms": MGP}, "error"), ({}, "result")):
        said = refused(refusal, **asked)[place]
        data = said["data"] if place == "error" else said["_meta"]["dev.comity/refusal"]
        assert data["field"] == "/a/0"
        assert data["suggestions"] == ["Use 3."]
        assert data["documentation_url"] == "https://docs.example.org/a"
    assert "will fail again. Use 3." in refused(refusal)["result"]["content"][0]["text"]


def test_a_tool_to_use_instead_is_told_where_the_operator_named_one() -> None:
    refusal = Refusal(errors.UPSTREAM_DOWN, "gone", fallback_tool="b__search")
    recovery = refused(refusal, terms=MGP)["error"]["data"]["_mgp"]
    assert recovery["fallback_tool"] == "b__search"
    assert "b__search may help instead" in refused(refusal)["result"]["content"][0]["text"]
    assert "fallback_tool" not in refused(Refusal(errors.UPSTREAM_DOWN, "gone"), terms=MGP)["error"]


@loop_over(
    ("seconds", "spoken"),
    [
        (0.001, "0.01 seconds"),
        (1, "1 second"),
        (59.999, "60 seconds"),
        (121, "3 minutes"),
        (7201, "3 hours"),
        (86400 * 3, "3 days"),
    ],
)
def test_a_wait_is_spoken_of_in_words_and_never_too_short(seconds: float, spoken: str) -> None:
    result = worded(errors.QUOTA_EXCEEDED, after=timedelta(seconds=seconds))["result"]
    assert f"again in {spoken} at" in result["content"][0]["text"]


def test_a_refusal_that_begins_with_an_id_leaves_the_id_as_it_is() -> None:
    refusal = Refusal(errors.DECLINED, "person:local declined this call")
    said = refused(refusal)["result"]["content"][0]["text"]
    assert said.startswith("person:local declined this call. The tool")
    other = refused(Refusal(errors.DECLINED, "nobody approved it"))["result"]["content"][0]["text"]
    assert other.startswith("Nobody approved it. ")


REGISTRY = RegistryContext("https://docs.example.org/comity/")


@each_fault
def test_at_the_registry_a_refusal_has_its_number_its_name_and_its_fields(fault: Fault) -> None:
    error = worded(fault, registry=REGISTRY)["error"]
    assert (error["code"], error["message"]) == (fault.reg, "it broke.")
    data = error["data"]
    assert data["error_type"] == fault.reg_type
    assert (data["reason"], data["trace_id"]) == ("it broke.", TRACE)
    assert data["suggestions"]
    assert all(isinstance(each, str) for each in data["suggestions"])
    page = f"https://docs.example.org/comity/reference/errors/#{fault.error_type}"
    assert data["documentation_url"] == page
    assert data["retryable"] is fault.retryable
    assert "_mgp" not in data


@loop_over(
    ("error", "fault", "after"),
    [
        ({"code": -32602, "message": "m"}, errors.INVALID_TOOL_ARGS, None),
        ({"code": -32603, "message": "m"}, errors.UPSTREAM_FAILED, None),
        ({"code": 3000, "message": "m"}, errors.UPSTREAM_FAILED, None),
        (
            {"code": 3000, "message": "m", "data": {"_mgp": {"retry_after_ms": 1500}}},
            errors.RATE_LIMITED,
            timedelta(seconds=1.5),
        ),
        (
            {"code": 3000, "message": "m", "data": {"_mgp": {"retry_after_ms": 10**30}}},
            errors.RATE_LIMITED,
            None,
        ),
        (
            {"code": 1999, "message": "m", "data": {"_mgp": {"retry_after_ms": "soon"}}},
            errors.UPSTREAM_FAILED,
            None,
        ),
    ],
)
def test_a_servers_error_can_be_told_as_a_refusal_of_ours(
    error: dict[str, Any], fault: Fault, after: timedelta | None
) -> None:
    found = of_server(jsonrpc.Frame("2.0", 7, error=jsonrpc.to_raw(error)))
    assert (found.fault, found.reason, found.retry_after) == (fault, "m", after)


@each_fault
def test_a_fault_says_where_it_comes_from_and_what_to_do(fault: Fault) -> None:
    assert ADVICE[fault].cause.endswith(".")
    assert suggestions_for(fault)
    for suggestion in suggestions_for(fault):
        assert suggestion[0].isupper()
        assert suggestion.endswith(".")


def test_nothing_is_advised_of_what_cannot_happen() -> None:
    assert set(ADVICE) == set(FAULTS.values())
