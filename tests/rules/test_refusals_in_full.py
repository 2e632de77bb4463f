"""What some refusals say beside their reason, and every refusal at the registry's face."""

import json
from datetime import timedelta
from typing import Any

import pytest

from comity.rules.refusals import Asked, AtRegistry, Refusal, of_server, word
from comity.wire import errors, jsonrpc
from comity.wire.errors import Fault
from tests.rules.test_refusals import MGP, TRACE, each_fault, worded


@pytest.mark.parametrize("fault", [errors.TIMEOUT, errors.UPSTREAM_FAILED, errors.UPSTREAM_SLOW])
def test_a_tool_that_its_operator_lets_be_called_twice_is_worth_it(fault: Fault) -> None:
    asked: dict[str, Any] = {"sent": True, "idempotent": True}
    recovery = worded(fault, terms=MGP, **asked)["error"]["data"]["_mgp"]
    assert recovery["retryable"] is True
    assert recovery["details"] == {"outcome": "unknown"}
    text = worded(fault, **asked)["result"]["content"][0]["text"]
    assert "may have run, but it can be called twice; calling it again in a moment" in text


def refused(refusal: Refusal, **asked: Any) -> dict[str, Any]:
    return json.loads(jsonrpc.encode(word(Asked(7, "tools/call", **asked), refusal, TRACE)))


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
    assert "will not help. Use 3." in refused(refusal)["result"]["content"][0]["text"]


def test_a_tool_to_use_instead_is_told_where_the_operator_named_one() -> None:
    refusal = Refusal(errors.UPSTREAM_DOWN, "gone", fallback_tool="b__search")
    recovery = refused(refusal, terms=MGP)["error"]["data"]["_mgp"]
    assert recovery["fallback_tool"] == "b__search"
    assert "b__search may do instead" in refused(refusal)["result"]["content"][0]["text"]
    assert "fallback_tool" not in refused(Refusal(errors.UPSTREAM_DOWN, "gone"), terms=MGP)["error"]


@pytest.mark.parametrize(
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


REGISTRY = AtRegistry("https://docs.example.org/comity/")


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


def test_at_the_registry_a_timeout_says_of_which_tool_and_how_long_was_waited() -> None:
    details = {"tool_name": "add", "timeout_ms": 30000}
    refusal = Refusal(errors.TIMEOUT, "too slow", details=details)
    data = refused(refusal, registry=AtRegistry(), sent=True)["error"]["data"]
    assert data["error_type"] == "ToolTimeout"
    assert (data["tool_name"], data["timeout_ms"]) == ("add", 30000)
    assert data["retryable"] is False
    assert "documentation_url" not in data


@pytest.mark.parametrize(
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
    assert (found.fault, found.because, found.retry_after) == (fault, "m", after)
