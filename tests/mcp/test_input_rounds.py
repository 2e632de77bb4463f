"""A question of one era, as the other asks it, and its answer on the way back."""

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.errors import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    URL_ELICITATION_REQUIRED,
    MalformedMessage,
)
from comity.mcp import eras, jsonrpc, protocol
from comity.mcp.eras import ClientInfo
from comity.mcp.jsonrpc import UNSET, Frame
from tests.mcp.json_values import (
    Object,
    as_object,
    json_values,
    objects,
    odd,
    params_in,
    raw,
    raws,
    result_in,
)
from tests.support.cases import loop_over

FORM: Object = {"message": "your name?", "requestedSchema": {"type": "object"}}
PAGE: Object = {"mode": "url", "message": "sign in", "url": "https://example.test/"}
ASKED = st.sampled_from(sorted(protocol.CLIENT_CAPABILITY))


def call(params: object, method: str = protocol.CALL_TOOL) -> Frame:
    return jsonrpc.make_request(7, method, params)


def wants(requests: object = UNSET, state: object = UNSET) -> Frame:
    found = {"resultType": "input_required", "inputRequests": requests, "requestState": state}
    return jsonrpc.make_result(7, {name: each for name, each in found.items() if each is not UNSET})


# What a client may be asked.


@loop_over(
    ("capabilities", "method", "params"),
    [
        ({"elicitation": {}}, protocol.ELICIT, FORM),
        ({"elicitation": {"form": {}}}, protocol.ELICIT, {**FORM, "mode": "form"}),
        ({"elicitation": {"form": {}, "url": {}}}, protocol.ELICIT, PAGE),
        ({"sampling": {}}, protocol.SAMPLE, {"messages": []}),
        ({"sampling": {"tools": {}}}, protocol.SAMPLE, {"messages": [], "tools": []}),
        ({"roots": {"listChanged": True}}, protocol.LIST_ROOTS, {}),
    ],
)
def test_a_client_is_asked_what_it_said_it_can_be_asked(
    capabilities: Object, method: str, params: Object
) -> None:
    assert eras.unaskable_reason(raws(capabilities), method, raw(params)) is None


@loop_over(
    ("capabilities", "method", "params", "because"),
    [
        ({}, protocol.ELICIT, FORM, "declare elicitation"),
        ({"elicitation": True}, protocol.ELICIT, FORM, "declare elicitation"),
        ({"elicitation": {}}, protocol.ELICIT, PAGE, "no url mode"),
        ({"elicitation": {"url": {}}}, protocol.ELICIT, FORM, "no form mode"),
        ({"elicitation": {"form": {}}}, protocol.ELICIT, {"mode": "m" * 999}, "no mmm"),
        ({"sampling": {}}, protocol.SAMPLE, {"tools": []}, "sampling.tools"),
        ({"sampling": {}}, protocol.SAMPLE, {"toolChoice": {}}, "sampling.tools"),
        ({"elicitation": {}}, protocol.LIST_ROOTS, {}, "declare roots"),
        ({"vendor/x": {}}, "vendor/x", {}, "this MCP version has no vendor/x"),
    ],
)
def test_a_client_is_not_asked_what_it_did_not_declare(
    capabilities: Object, method: str, params: Object, because: str
) -> None:
    reason = eras.unaskable_reason(raws(capabilities), method, raw(params))
    assert reason is not None
    assert because in reason
    assert len(reason) < 200


# A handshake server asks a modern client.


def test_a_repeated_request_brings_answers_and_the_state_it_was_given() -> None:
    for first in ({"name": "t"}, {"inputResponses": None, "requestState": None}):
        assert eras.input_responses_in(call(first)) == ({}, None)
    again = call({"inputResponses": {"1": {"a": 1}}, "requestState": "s"})
    assert eras.input_responses_in(again) == ({"1": raw({"a": 1})}, "s")
    assert eras.client_declaration_in(again) == ClientInfo({})


@loop_over(
    "params",
    [
        {"inputResponses": {}},
        {"inputResponses": {"1": {}}, "requestState": None},
        {"requestState": 7},
        {"requestState": ["s"]},
        {"requestState": "s", "inputResponses": []},
    ],
)
def test_a_round_that_cannot_be_understood_is_refused(params: Object) -> None:
    with pytest.raises(MalformedMessage):
        eras.input_responses_in(call(params))


_PARTS = st.sampled_from(["_meta", "task", "requestState", "inputResponses"])


@given(objects(), st.dictionaries(_PARTS, json_values))
def test_a_digest_tells_what_is_asked_for_and_not_how(params: Object, added: Object) -> None:
    plain = {name: value for name, value in params.items() if name not in added}
    digest = eras.request_digest("srv", call(plain))
    turned = dict(reversed(plain.items()))
    assert eras.request_digest("srv", jsonrpc.with_id(call({**turned, **added}), "other")) == digest


@given(objects("_meta", "task", *eras.ROUND), objects("_meta", "task", *eras.ROUND))
def test_two_requests_for_different_things_have_different_digests(
    one: Object, other: Object
) -> None:
    same = jsonrpc.to_json(_sorted(one)) == jsonrpc.to_json(_sorted(other))
    assert (
        eras.request_digest("srv", call(one)) == eras.request_digest("srv", call(other))
    ) is same
    assert eras.request_digest("srv", call(one)) != eras.request_digest("another", call(one))
    assert eras.request_digest("srv", call(one)) != eras.request_digest(
        "srv", call(one, protocol.GET_PROMPT)
    )


def _sorted(value: object) -> object:
    return msgspec.json.decode(msgspec.json.encode(value, order="sorted"))


def test_a_question_is_embedded_without_what_only_its_own_era_has() -> None:
    meta = {"progressToken": 1, eras.RELATED: {"taskId": "t"}, "vendor": 1}
    asked = jsonrpc.make_request(
        3, protocol.ELICIT, {**FORM, "task": {}, "elicitationId": "e", "_meta": meta}
    )
    assert _plain(eras.embed_request(asked)) == {
        "method": protocol.ELICIT,
        "params": {**FORM, "_meta": {"vendor": 1}},
    }


@loop_over("params", [UNSET, {}, {"_meta": {"progressToken": 1}}])
def test_a_question_without_parameters_has_none(params: object) -> None:
    asked = jsonrpc.make_request(3, protocol.LIST_ROOTS, params)
    assert eras.embed_request(asked) == {"method": protocol.LIST_ROOTS}


def _plain(value: object) -> object:
    return msgspec.json.decode(jsonrpc.to_json(value))


def test_an_answer_goes_back_under_the_servers_own_id() -> None:
    answer = eras.answer_to("q-1", raw({"action": "accept", "resultType": "complete"}))
    assert answer == jsonrpc.make_result("q-1", {"action": "accept"})


@loop_over("response", [None, [], "accept", 7])
def test_an_answer_that_is_no_object_is_refused(response: object) -> None:
    with pytest.raises(MalformedMessage):
        eras.answer_to(1, raw(response))


@given(ASKED, objects("_meta", "task", "elicitationId", "mode"), objects("resultType"))
def test_a_question_and_its_answer_come_through_both_crossings(
    method: str, params: Object, response: Object
) -> None:
    """A handshake server behind a modern one behind a handshake client, in the worst of houses."""
    body = eras.input_required(
        {"k": eras.embed_request(jsonrpc.make_request(3, method, params))}, "s"
    )
    wanted = eras.required_input_in(jsonrpc.make_result(7, body))
    assert wanted is not None
    asked_method, asked_params = wanted.requests["k"]
    assert (asked_method, _plain(asked_params)) == (method, params)
    given_back = eras.response_to(method, jsonrpc.make_result("k", response))
    again = eras.repeat_request(call({"name": "t"}), {"k": given_back}, wanted.state)
    responses, state = eras.input_responses_in(again)
    assert state == "s"
    assert result_in(eras.answer_to(3, responses["k"])) == response


# Pages that a handshake server demands by an error.


def demands(data: object) -> Frame:
    error = {"code": URL_ELICITATION_REQUIRED.code, "message": "sign in first", "data": data}
    return Frame("2.0", 7, error=raw(error))


def test_the_pages_of_a_demand_are_questions() -> None:
    page = {"message": "sign in", "url": "https://example.test/", "elicitationId": "e"}
    (found,) = eras.pages_in(demands({"elicitations": [page]}))
    assert jsonrpc.decode_value(found) == {**page, "mode": "url"}


@loop_over(
    "frame",
    [
        jsonrpc.make_result(7, {"elicitations": [PAGE]}),
        jsonrpc.make_error(7, METHOD_NOT_FOUND, "no", {"elicitations": [PAGE]}),
        demands({}),
        demands({"elicitations": []}),
        demands({"elicitations": {}}),
        demands({"elicitations": [7]}),
        demands({"elicitations": [PAGE] * (eras.MAX_REQUESTS + 1)}),
        demands([]),
        Frame("2.0", 7, error=raw({"code": URL_ELICITATION_REQUIRED.code, "message": "x"})),
        Frame("2.0", 7, error=raw("broken")),
    ],
)
def test_anything_else_demands_no_page(frame: Frame) -> None:
    assert eras.pages_in(frame) == []


def test_only_consent_is_consent() -> None:
    assert eras.is_accepted(jsonrpc.make_result(1, {"action": "accept"}))
    assert not eras.is_accepted(jsonrpc.make_result(1, {"action": "decline"}))
    assert not eras.is_accepted(jsonrpc.make_result(1, {}))
    assert not eras.is_accepted(jsonrpc.make_error(1, METHOD_NOT_FOUND, "no"))


# A modern server asks a handshake client.


@loop_over(
    "frame",
    [
        jsonrpc.make_result(7, {"resultType": "complete", "said": "input_required"}),
        jsonrpc.make_result(7, {"content": []}),
        jsonrpc.make_error(7, METHOD_NOT_FOUND, "input_required"),
        jsonrpc.make_result(7, {"resultType": ["input_required"]}),
    ],
)
def test_an_answer_wants_nothing(frame: Frame) -> None:
    assert eras.required_input_in(frame) is None


def test_what_a_server_wants_is_read() -> None:
    wanted = eras.required_input_in(wants({"a": {"method": protocol.ELICIT, "params": FORM}}, "s"))
    assert wanted is not None
    assert wanted.state == raw("s")
    assert {
        key: (method, jsonrpc.decode_value(params))
        for key, (method, params) in wanted.requests.items()
    } == {"a": (protocol.ELICIT, FORM)}
    assert eras.required_input_in(wants(state="later")) == eras.InputRequiredResult(
        {}, raw("later")
    )


@loop_over(
    "frame",
    [
        wants(),
        wants({}),
        wants(None, "s"),
        wants([], "s"),
        wants({"a": {"method": protocol.ELICIT}}, 7),
        wants({"a": None}),
        wants({"a": {}}),
        wants({"a": {"method": 7}}),
        wants({"a": {"method": "tools/call"}}),
        wants({"a": {"method": "x" * 9999}}),
        wants({"a": {"method": protocol.ELICIT, "params": []}}),
        wants({"a": {"method": protocol.ELICIT, "params": None}}),
        wants({str(n): {"method": protocol.LIST_ROOTS} for n in range(eras.MAX_REQUESTS + 1)}),
        Frame("2.0", 7, result=msgspec.Raw(b'"input_required"')),
        Frame("2.0", 7, result=msgspec.Raw(b'{"resultType":"input_required","resultType":1}')),
        Frame(
            "2.0",
            7,
            result=msgspec.Raw(
                b'{"resultType":"input_required","inputRequests":{"a":{"method":"roots/list"},'
                b'"a":{"method":"roots/list"}}}'
            ),
        ),
    ],
)
def test_a_server_that_asks_in_no_known_way_is_refused(frame: Frame) -> None:
    with pytest.raises(MalformedMessage) as refused:
        eras.required_input_in(frame)
    assert len(str(refused.value)) < 200


def test_a_question_by_a_page_gets_the_name_that_its_era_demands() -> None:
    frame = eras.handshake_question("k", protocol.ELICIT, raw(PAGE), "fresh")
    assert (frame.id, frame.method) == ("k", protocol.ELICIT)
    assert params_in(frame) == {**PAGE, "elicitationId": "fresh"}
    named = eras.handshake_question(
        "k", protocol.ELICIT, raw({**PAGE, "elicitationId": "e"}), "fresh"
    )
    assert params_in(named) == {**PAGE, "elicitationId": "e"}


@loop_over("params", [FORM, {**FORM, "mode": "form"}])
def test_every_other_question_stays_as_it_is(params: Object) -> None:
    assert params_in(eras.handshake_question("k", protocol.ELICIT, raw(params), "n")) == params
    sampling = eras.handshake_question("k", protocol.SAMPLE, raw({"mode": "url"}), "n")
    assert params_in(sampling) == {"mode": "url"}


def test_a_repeated_request_is_the_first_with_the_answers() -> None:
    frame = call({"name": "t", "_meta": {"a": 1}})
    again = eras.repeat_request(frame, {"k": {"roots": []}}, raw("s"))
    assert params_in(again) == {
        **params_in(frame),
        "inputResponses": {"k": {"roots": []}},
        "requestState": "s",
    }
    assert eras.repeat_request(frame, {}, None) == frame


@loop_over(
    ("method", "expected"),
    [(protocol.ELICIT, {"action": "cancel"}), (protocol.SAMPLE, None), (protocol.LIST_ROOTS, None)],
)
def test_an_error_of_the_clients_is_an_answer_to_an_elicitation_alone(
    method: str, expected: object
) -> None:
    assert eras.response_to(method, jsonrpc.make_error("k", INVALID_PARAMS, "no")) == expected


def test_the_first_thing_that_a_client_lacks_is_named() -> None:
    wanted = eras.InputRequiredResult(
        {"a": (protocol.LIST_ROOTS, raw({})), "b": (protocol.SAMPLE, raw({}))}, None
    )
    assert eras.missing_capability_reason(raws({"roots": {}, "sampling": {}}), wanted) is None
    assert (
        eras.missing_capability_reason(raws({"roots": {}}), wanted)
        == "this client did not declare sampling"
    )


# Strangers.

_ODD = odd(
    "inputResponses", "requestState", "inputRequests", "resultType", "_meta", "method", "params",
    "action", "mode", "error", "data", "elicitations", "input_required",
)  # fmt: skip


@given(st.one_of(json_values, _ODD, _ODD.map(lambda found: {"inputRequests": {"a": found}})), ASKED)
def test_whatever_a_stranger_says_is_understood_or_malformed(said: object, method: str) -> None:
    asked, answered, refused = (
        call(said),
        jsonrpc.make_result(7, said),
        Frame("2.0", 7, error=raw(said)),
    )
    stamped: Object = {**as_object(said), "resultType": "input_required"}
    attempts: list[Callable[[], object]] = [
        lambda: eras.input_responses_in(asked),
        lambda: eras.request_digest("srv", asked),
        lambda: eras.embed_request(jsonrpc.make_request(1, method, said)),
        lambda: eras.answer_to(1, raw(said)),
        lambda: eras.pages_in(refused),
        lambda: eras.pages_in(demands(said)),
        lambda: eras.is_accepted(answered),
        lambda: eras.required_input_in(answered),
        lambda: eras.required_input_in(jsonrpc.make_result(7, stamped)),
        lambda: eras.unaskable_reason(
            raws({"elicitation": said, "sampling": said}), method, raw(said)
        ),
        lambda: eras.handshake_question("k", method, raw(said), "n"),
        lambda: eras.response_to(method, answered),
    ]
    for attempt in attempts:
        try:
            attempt()
        except MalformedMessage:
            continue
