"""A question of one era, as the other asks it, and its answer on the way back."""

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.rules import eras, rounds, tasks
from comity.rules.eras import Said
from comity.wire import jsonrpc, mcp
from comity.wire.errors import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    URL_ELICITATION_REQUIRED,
    MalformedMessage,
)
from comity.wire.jsonrpc import UNSET, Frame
from tests.rules.said import (
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

FORM: Object = {"message": "your name?", "requestedSchema": {"type": "object"}}
PAGE: Object = {"mode": "url", "message": "sign in", "url": "https://example.test/"}
ASKED = st.sampled_from(sorted(mcp.CLIENT_CAPABILITY))


def call(params: object, method: str = mcp.CALL_TOOL) -> Frame:
    return jsonrpc.request(7, method, params)


def wants(requests: object = UNSET, state: object = UNSET) -> Frame:
    found = {"resultType": "input_required", "inputRequests": requests, "requestState": state}
    return jsonrpc.result(7, {name: each for name, each in found.items() if each is not UNSET})


# What a client may be asked.


@pytest.mark.parametrize(
    ("capabilities", "method", "params"),
    [
        ({"elicitation": {}}, mcp.ELICIT, FORM),
        ({"elicitation": {"form": {}}}, mcp.ELICIT, {**FORM, "mode": "form"}),
        ({"elicitation": {"form": {}, "url": {}}}, mcp.ELICIT, PAGE),
        ({"sampling": {}}, mcp.SAMPLE, {"messages": []}),
        ({"sampling": {"tools": {}}}, mcp.SAMPLE, {"messages": [], "tools": []}),
        ({"roots": {"listChanged": True}}, mcp.LIST_ROOTS, {}),
    ],
)
def test_a_client_is_asked_what_it_said_it_can_be_asked(
    capabilities: Object, method: str, params: Object
) -> None:
    assert rounds.unaskable(raws(capabilities), method, raw(params)) is None


@pytest.mark.parametrize(
    ("capabilities", "method", "params", "because"),
    [
        ({}, mcp.ELICIT, FORM, "declare elicitation"),
        ({"elicitation": True}, mcp.ELICIT, FORM, "declare elicitation"),
        ({"elicitation": {}}, mcp.ELICIT, PAGE, "no url mode"),
        ({"elicitation": {"url": {}}}, mcp.ELICIT, FORM, "no form mode"),
        ({"elicitation": {"form": {}}}, mcp.ELICIT, {"mode": "m" * 999}, "no mmm"),
        ({"sampling": {}}, mcp.SAMPLE, {"tools": []}, "sampling.tools"),
        ({"sampling": {}}, mcp.SAMPLE, {"toolChoice": {}}, "sampling.tools"),
        ({"elicitation": {}}, mcp.LIST_ROOTS, {}, "declare roots"),
        ({"vendor/x": {}}, "vendor/x", {}, "no client is asked vendor/x"),
    ],
)
def test_a_client_is_not_asked_what_it_did_not_declare(
    capabilities: Object, method: str, params: Object, because: str
) -> None:
    reason = rounds.unaskable(raws(capabilities), method, raw(params))
    assert reason is not None
    assert because in reason
    assert len(reason) < 200


# A handshake server asks a modern client.


def test_a_first_request_brings_no_answers_and_no_state() -> None:
    assert rounds.round_in(call({"name": "t"})) == ({}, None)
    assert rounds.round_in(call({"inputResponses": None, "requestState": None})) == ({}, None)


def test_a_repeated_request_brings_answers_and_the_state_it_was_given() -> None:
    responses, state = rounds.round_in(
        call({"inputResponses": {"1": {"a": 1}}, "requestState": "s"})
    )
    assert responses == {"1": raw({"a": 1})}
    assert state == "s"


@pytest.mark.parametrize(
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
        rounds.round_in(call(params))


_PARTS = st.sampled_from(["_meta", "task", "requestState", "inputResponses"])


@given(objects(), st.dictionaries(_PARTS, json_values))
def test_a_digest_tells_what_is_asked_for_and_not_how(params: Object, added: Object) -> None:
    plain = {name: value for name, value in params.items() if name not in added}
    digest = rounds.digest("srv", call(plain))
    turned = dict(reversed(plain.items()))
    assert rounds.digest("srv", jsonrpc.with_id(call({**turned, **added}), "other")) == digest


@given(objects("_meta", "task", *eras.ROUND), objects("_meta", "task", *eras.ROUND))
def test_two_requests_for_different_things_have_different_digests(
    one: Object, other: Object
) -> None:
    same = jsonrpc.to_json(_sorted(one)) == jsonrpc.to_json(_sorted(other))
    assert (rounds.digest("srv", call(one)) == rounds.digest("srv", call(other))) is same
    assert rounds.digest("srv", call(one)) != rounds.digest("another", call(one))
    assert rounds.digest("srv", call(one)) != rounds.digest("srv", call(one, mcp.GET_PROMPT))


def _sorted(value: object) -> object:
    return msgspec.json.decode(msgspec.json.encode(value, order="sorted"))


def test_a_question_is_embedded_without_what_only_its_own_era_has() -> None:
    meta = {"progressToken": 1, tasks.RELATED: {"taskId": "t"}, "vendor": 1}
    asked = jsonrpc.request(
        3, mcp.ELICIT, {**FORM, "task": {}, "elicitationId": "e", "_meta": meta}
    )
    assert _plain(rounds.embedded(asked)) == {
        "method": mcp.ELICIT,
        "params": {**FORM, "_meta": {"vendor": 1}},
    }


@pytest.mark.parametrize("params", [UNSET, {}, {"_meta": {"progressToken": 1}}])
def test_a_question_without_parameters_has_none(params: object) -> None:
    asked = jsonrpc.request(3, mcp.LIST_ROOTS, params)
    assert rounds.embedded(asked) == {"method": mcp.LIST_ROOTS}


def _plain(value: object) -> object:
    return msgspec.json.decode(jsonrpc.to_json(value))


def test_an_answer_goes_back_under_the_servers_own_id() -> None:
    answer = rounds.answer_to("q-1", raw({"action": "accept", "resultType": "complete"}))
    assert answer == jsonrpc.result("q-1", {"action": "accept"})


@pytest.mark.parametrize("response", [None, [], "accept", 7])
def test_an_answer_that_is_no_object_is_refused(response: object) -> None:
    with pytest.raises(MalformedMessage):
        rounds.answer_to(1, raw(response))


@given(ASKED, objects("_meta", "task", "elicitationId", "mode"), objects("resultType"))
def test_a_question_and_its_answer_come_through_both_crossings(
    method: str, params: Object, response: Object
) -> None:
    """A handshake server behind a modern one behind a handshake client, in the worst of houses."""
    body = rounds.input_required({"k": rounds.embedded(jsonrpc.request(3, method, params))}, "s")
    wanted = rounds.wanted_in(jsonrpc.result(7, body))
    assert wanted is not None
    asked_method, asked_params = wanted.requests["k"]
    assert (asked_method, _plain(asked_params)) == (method, params)
    given_back = rounds.response_to(method, jsonrpc.result("k", response))
    again = rounds.repeated(call({"name": "t"}), {"k": given_back}, wanted.state)
    responses, state = rounds.round_in(again)
    assert state == "s"
    assert result_in(rounds.answer_to(3, responses["k"])) == response


# Pages that a handshake server demands by an error.


def demands(data: object) -> Frame:
    error = {"code": URL_ELICITATION_REQUIRED.code, "message": "sign in first", "data": data}
    return Frame("2.0", 7, error=raw(error))


def test_the_pages_of_a_demand_are_questions() -> None:
    page = {"message": "sign in", "url": "https://example.test/", "elicitationId": "e"}
    (found,) = rounds.pages_in(demands({"elicitations": [page]}))
    assert jsonrpc.value(found) == {**page, "mode": "url"}


@pytest.mark.parametrize(
    "frame",
    [
        jsonrpc.result(7, {"elicitations": [PAGE]}),
        jsonrpc.failure(7, METHOD_NOT_FOUND, "no", {"elicitations": [PAGE]}),
        demands({}),
        demands({"elicitations": []}),
        demands({"elicitations": {}}),
        demands({"elicitations": [7]}),
        demands({"elicitations": [PAGE] * (rounds.MOST_REQUESTS + 1)}),
        demands([]),
        Frame("2.0", 7, error=raw({"code": URL_ELICITATION_REQUIRED.code, "message": "x"})),
        Frame("2.0", 7, error=raw("broken")),
    ],
)
def test_anything_else_demands_no_page(frame: Frame) -> None:
    assert rounds.pages_in(frame) == []


def test_only_consent_is_consent() -> None:
    assert rounds.is_accepted(jsonrpc.result(1, {"action": "accept"}))
    assert not rounds.is_accepted(jsonrpc.result(1, {"action": "decline"}))
    assert not rounds.is_accepted(jsonrpc.result(1, {}))
    assert not rounds.is_accepted(jsonrpc.failure(1, METHOD_NOT_FOUND, "no"))


# A modern server asks a handshake client.


@pytest.mark.parametrize(
    "frame",
    [
        jsonrpc.result(7, {"resultType": "complete", "said": "input_required"}),
        jsonrpc.result(7, {"content": []}),
        jsonrpc.failure(7, METHOD_NOT_FOUND, "input_required"),
        jsonrpc.result(7, {"resultType": ["input_required"]}),
    ],
)
def test_an_answer_wants_nothing(frame: Frame) -> None:
    assert rounds.wanted_in(frame) is None


def test_what_a_server_wants_is_read() -> None:
    wanted = rounds.wanted_in(wants({"a": {"method": mcp.ELICIT, "params": FORM}}, "s"))
    assert wanted is not None
    assert wanted.state == raw("s")
    assert {
        key: (method, jsonrpc.value(params)) for key, (method, params) in wanted.requests.items()
    } == {"a": (mcp.ELICIT, FORM)}


def test_a_server_may_want_nothing_but_time() -> None:
    assert rounds.wanted_in(wants(state="later")) == rounds.Wanted({}, raw("later"))


@pytest.mark.parametrize(
    "frame",
    [
        wants(),
        wants({}),
        wants(None, "s"),
        wants([], "s"),
        wants({"a": {"method": mcp.ELICIT}}, 7),
        wants({"a": None}),
        wants({"a": {}}),
        wants({"a": {"method": 7}}),
        wants({"a": {"method": "tools/call"}}),
        wants({"a": {"method": "x" * 9999}}),
        wants({"a": {"method": mcp.ELICIT, "params": []}}),
        wants({"a": {"method": mcp.ELICIT, "params": None}}),
        wants({str(n): {"method": mcp.LIST_ROOTS} for n in range(rounds.MOST_REQUESTS + 1)}),
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
        rounds.wanted_in(frame)
    assert len(str(refused.value)) < 200


def test_a_question_by_a_page_gets_the_name_that_its_era_demands() -> None:
    frame = rounds.handshake_question("k", mcp.ELICIT, raw(PAGE), "fresh")
    assert (frame.id, frame.method) == ("k", mcp.ELICIT)
    assert params_in(frame) == {**PAGE, "elicitationId": "fresh"}
    named = rounds.handshake_question("k", mcp.ELICIT, raw({**PAGE, "elicitationId": "e"}), "fresh")
    assert params_in(named) == {**PAGE, "elicitationId": "e"}


@pytest.mark.parametrize("params", [FORM, {**FORM, "mode": "form"}])
def test_every_other_question_stays_as_it_is(params: Object) -> None:
    assert params_in(rounds.handshake_question("k", mcp.ELICIT, raw(params), "n")) == params
    sampling = rounds.handshake_question("k", mcp.SAMPLE, raw({"mode": "url"}), "n")
    assert params_in(sampling) == {"mode": "url"}


def test_a_repeated_request_is_the_first_with_the_answers() -> None:
    frame = call({"name": "t", "_meta": {"a": 1}})
    again = rounds.repeated(frame, {"k": {"roots": []}}, raw("s"))
    assert params_in(again) == {
        **params_in(frame),
        "inputResponses": {"k": {"roots": []}},
        "requestState": "s",
    }
    assert rounds.repeated(frame, {}, None) == frame


@pytest.mark.parametrize(
    ("method", "expected"),
    [(mcp.ELICIT, {"action": "cancel"}), (mcp.SAMPLE, None), (mcp.LIST_ROOTS, None)],
)
def test_an_error_of_the_clients_is_an_answer_to_an_elicitation_alone(
    method: str, expected: object
) -> None:
    assert rounds.response_to(method, jsonrpc.failure("k", INVALID_PARAMS, "no")) == expected


def test_the_first_thing_that_a_client_lacks_is_named() -> None:
    wanted = rounds.Wanted({"a": (mcp.LIST_ROOTS, raw({})), "b": (mcp.SAMPLE, raw({}))}, None)
    assert rounds.lacking(raws({"roots": {}, "sampling": {}}), wanted) is None
    assert rounds.lacking(raws({"roots": {}}), wanted) == "this client did not declare sampling"


# Strangers.

_ODD = odd(
    "inputResponses", "requestState", "inputRequests", "resultType", "_meta", "method", "params",
    "action", "mode", "error", "data", "elicitations", "input_required",
)  # fmt: skip


@given(st.one_of(json_values, _ODD, _ODD.map(lambda found: {"inputRequests": {"a": found}})), ASKED)
def test_whatever_a_stranger_says_is_understood_or_malformed(said: object, method: str) -> None:
    asked, answered, refused = call(said), jsonrpc.result(7, said), Frame("2.0", 7, error=raw(said))
    stamped: Object = {**as_object(said), "resultType": "input_required"}
    attempts: list[Callable[[], object]] = [
        lambda: rounds.round_in(asked),
        lambda: rounds.digest("srv", asked),
        lambda: rounds.embedded(jsonrpc.request(1, method, said)),
        lambda: rounds.answer_to(1, raw(said)),
        lambda: rounds.pages_in(refused),
        lambda: rounds.pages_in(demands(said)),
        lambda: rounds.is_accepted(answered),
        lambda: rounds.wanted_in(answered),
        lambda: rounds.wanted_in(jsonrpc.result(7, stamped)),
        lambda: rounds.unaskable(raws({"elicitation": said, "sampling": said}), method, raw(said)),
        lambda: rounds.handshake_question("k", method, raw(said), "n"),
        lambda: rounds.response_to(method, answered),
    ]
    for attempt in attempts:
        try:
            attempt()
        except MalformedMessage:
            continue


def test_nothing_of_a_round_is_said_of_a_client() -> None:
    frame = call({"inputResponses": {"k": {}}, "requestState": "s"})
    assert eras.said_in(frame) == Said({})
